//! The calls into the C++ files of this crate: functions of libtorch that tch does not wrap.
//!
//! All unsafe code of the crate is here, in `native/` and in `device.rs`.
#![expect(
    unsafe_code,
    reason = "foreign functions can only be called in unsafe code"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write as _;
use std::sync::OnceLock;

use libloading::Library;
use tch::{Device, Tensor};

pub(crate) mod backward;
pub(crate) mod gloo;
pub(crate) mod mpi;
pub(crate) mod nccl;

/// A tensor on the other side: tch's handle is a pointer to libtorch's own.
type Handle = *const c_void;

unsafe extern "C" {
    fn starling_native_error() -> *const c_char;
    fn starling_fused_adam(
        params: Handle,
        gradient: Handle,
        mean: Handle,
        square: Handle,
        steps: Handle,
        rate: Handle,
        beta1: f64,
        beta2: f64,
        eps: f64,
    ) -> c_int;
    fn starling_copy_async(to: Handle, from: Handle) -> c_int;
    fn starling_pinned(tensor: Handle) -> *mut c_void;
    fn starling_unnoticed(tensor: Handle) -> *mut c_void;
    fn starling_tune(tf32: c_int, benchmark: c_int) -> c_int;
    fn starling_script_error() -> *const c_char;
    fn starling_write_script(
        source: *const c_char,
        names: *const *const c_char,
        tensors: *const Handle,
        count: c_int,
        about: *const c_char,
        path: *const c_char,
    ) -> c_int;
}

fn handle(tensor: &Tensor) -> Handle {
    tensor.as_ptr().cast()
}

/// libtorch refuses only what a mistake of ours asked of it, as with every operation of tch.
fn checked(code: c_int, error: unsafe extern "C" fn() -> *const c_char) {
    if code != 0 {
        // SAFETY: the function returns the terminated message that the failed call left for
        // this thread.
        let message = unsafe { CStr::from_ptr(error()) };
        panic!("libtorch: {}", message.to_string_lossy());
    }
}

/// What Adam works on: vectors of one length and two scalars, all on one device.
pub(crate) struct Adam<'a> {
    pub(crate) params: &'a Tensor,
    pub(crate) gradient: &'a Tensor,
    pub(crate) mean: &'a Tensor,
    pub(crate) square: &'a Tensor,
    /// This step's number, from 1.
    pub(crate) steps: &'a Tensor,
    pub(crate) rate: &'a Tensor,
}

/// One step of Adam in one pass over memory.
pub(crate) fn fused_adam(x: &Adam<'_>, beta1: f64, beta2: f64, eps: f64) {
    // SAFETY: all handles are those of live tensors; shapes and devices are checked by libtorch.
    let code = unsafe {
        starling_fused_adam(
            handle(x.params),
            handle(x.gradient),
            handle(x.mean),
            handle(x.square),
            handle(x.steps),
            handle(x.rate),
            beta1,
            beta2,
            eps,
        )
    };
    checked(code, starling_native_error);
}

/// Copies `from` into `to`. Between pinned memory and a GPU it does not wait: `from` must not
/// change before the thread's stream got there.
pub fn copy_async(to: &Tensor, from: &Tensor) {
    // SAFETY: both handles are those of live tensors; shapes are checked by libtorch.
    let code = unsafe { starling_copy_async(handle(to), handle(from)) };
    checked(code, starling_native_error);
}

/// A copy in pinned memory, from which a GPU can fetch by itself.
pub(crate) fn pinned(tensor: &Tensor) -> Tensor {
    // SAFETY: the handle is that of a live tensor. What comes back is a new tensor of libtorch's
    // own type, as tch's constructor wants it, and nobody else has it.
    unsafe {
        let pinned = starling_pinned(handle(tensor));
        checked(c_int::from(pinned.is_null()), starling_native_error);
        Tensor::from_ptr(pinned.cast())
    }
}

/// The same memory, whose changes automatic differentiation does not notice: only for numbers that no
/// gradient depends on.
pub(crate) fn unnoticed(tensor: &Tensor) -> Tensor {
    // SAFETY: as in `pinned`.
    unsafe {
        let same = starling_unnoticed(handle(tensor));
        checked(c_int::from(same.is_null()), starling_native_error);
        Tensor::from_ptr(same.cast())
    }
}

/// Writes a TorchScript module with these constants, whose methods are given in TorchScript's language.
pub(crate) fn write_script(
    source: &str,
    names: &[String],
    tensors: &[&Tensor],
    about: &str,
    path: &str,
) -> Result<(), String> {
    let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
    let owned: Result<Vec<CString>, String> = names.iter().map(|name| text(name)).collect();
    let owned = owned?;
    let names: Vec<*const c_char> = owned.iter().map(|name| name.as_ptr()).collect();
    let tensors: Vec<Handle> = tensors.iter().map(|tensor| handle(tensor)).collect();
    let (source, about, path) = (text(source)?, text(about)?, text(path)?);
    let count =
        c_int::try_from(names.len().min(tensors.len())).map_err(|error| error.to_string())?;
    // SAFETY: all texts are terminated and, like the tensors, live until the call returns; both lists
    // have at least `count` elements. What libtorch throws is caught on the other side.
    let code = unsafe {
        starling_write_script(
            source.as_ptr(),
            names.as_ptr(),
            tensors.as_ptr(),
            count,
            about.as_ptr(),
            path.as_ptr(),
        )
    };
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the terminated message that the failed call left for this thread.
    let message = unsafe { CStr::from_ptr(starling_script_error()) };
    Err(message.to_string_lossy().into_owned())
}

/// Host memory from which a GPU can fetch by itself, as the memory of an array, with a place on
/// that GPU.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    /// 64-bit words.
    host: Tensor,
    /// As many words.
    on_device: Tensor,
    /// Whether those on the device are the same.
    sent: bool,
    words: usize,
}

// SAFETY: the tensors are private, and with a shared reference their memory is only read.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub(crate) fn new(words: usize, device: Device) -> Self {
        let zeros = |device| Tensor::zeros([words as i64], (tch::Kind::Int64, device));
        Self {
            host: pinned(&zeros(Device::Cpu)),
            on_device: zeros(device),
            sent: true,
            words,
        }
    }

    /// Asks the device to fetch it, on the thread's stream.
    pub(crate) fn send(&mut self) {
        copy_async(&self.on_device, &self.host);
        self.sent = true;
    }

    pub(crate) fn device(&self) -> Device {
        self.on_device.device()
    }

    /// Its beginning as a tensor of a kind and shape: on the device, if it was sent there since
    /// it was last changed.
    pub(crate) fn tensor(&self, kind: tch::Kind, shape: &[i64]) -> Tensor {
        let words = if self.sent {
            &self.on_device
        } else {
            &self.host
        };
        let elements: i64 = shape.iter().product();
        words.view_dtype(kind).narrow(0, 0, elements).view(shape)
    }
}

impl starling_tree::Memory for PinnedMemory {
    fn words(&self) -> &[u64] {
        // SAFETY: the tensor owns so many contiguous words, which only `words_mut` writes.
        unsafe { std::slice::from_raw_parts(self.host.data_ptr().cast(), self.words) }
    }

    fn words_mut(&mut self) -> &mut [u64] {
        self.sent = false;
        // SAFETY: as above, and nobody else has the tensor's memory while `self` is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.host.data_ptr().cast(), self.words) }
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

/// Overwrites part of a tensor in host memory.
///
/// # Panics
/// When the tensor is not contiguous host memory, or the bytes do not fit in there.
pub(crate) fn write_bytes(tensor: &Tensor, offset: usize, bytes: &[u8]) {
    let length = tensor.numel() * tensor.kind().elt_size_in_bytes();
    assert!(tensor.device() == Device::Cpu && tensor.is_contiguous());
    assert!(offset <= length && bytes.len() <= length - offset);
    // SAFETY: the tensor owns `length` bytes at its pointer, the part lies within them, and
    // `bytes`, being borrowed by somebody who has no tensor, cannot overlap them.
    unsafe {
        let target = tensor.data_ptr().cast::<u8>().add(offset);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
    }
}

/// Sets how a GPU computes: whether the inputs of float32 products may be rounded to
/// TensorFloat-32. For the whole process.
pub fn allow_tf32(allow: bool) {
    // SAFETY: it only sets flags.
    let code = unsafe { starling_tune(c_int::from(allow), 1) };
    checked(code, starling_native_error);
}

/// The functions of the library for CUDA graphs.
struct Cuda {
    error: unsafe extern "C" fn() -> *const c_char,
    own_stream: unsafe extern "C" fn(c_int, c_int) -> c_int,
    synchronize: unsafe extern "C" fn(c_int) -> c_int,
    use_device: unsafe extern "C" fn(c_int) -> c_int,
    stream: unsafe extern "C" fn(c_int) -> *mut c_void,
    stream_query: unsafe extern "C" fn(c_int) -> c_int,
    mark_new: unsafe extern "C" fn(c_int) -> *mut c_void,
    mark_wait: unsafe extern "C" fn(*mut c_void) -> c_int,
    mark_free: unsafe extern "C" fn(*mut c_void),
    graph_new: unsafe extern "C" fn() -> *mut c_void,
    graph_free: unsafe extern "C" fn(*mut c_void),
    graph_begin: unsafe extern "C" fn(*mut c_void) -> c_int,
    graph_end: unsafe extern "C" fn(*mut c_void) -> c_int,
    graph_replay: unsafe extern "C" fn(*mut c_void) -> c_int,
}

static CUDA: OnceLock<Option<Cuda>> = OnceLock::new();

/// Opens the library for CUDA graphs; libtorch's CUDA half must be loaded by then.
pub(crate) fn load_graphs() {
    CUDA.get_or_init(open_graphs);
}

/// Whether computations on a GPU can be recorded as graphs.
pub fn has_graphs() -> bool {
    cuda().is_some()
}

fn cuda() -> Option<&'static Cuda> {
    CUDA.get()?.as_ref()
}

fn open_graphs() -> Option<Cuda> {
    static LIBRARY: &[u8] = include_bytes!(env!("STARLING_CUDA_LIBRARY"));
    if LIBRARY.is_empty() {
        return None;
    }
    let mut file = tempfile::Builder::new().suffix(".so").tempfile().ok()?;
    file.write_all(LIBRARY).ok()?;
    // SAFETY: the file is the library that was built with this crate; it has no initialisers,
    // and is never unloaded. Each name is looked up with the type that `cuda.cpp` declares.
    unsafe {
        let library = Box::leak(Box::new(Library::new(file.path()).ok()?));
        Some(Cuda {
            error: *library.get(b"starling_cuda_error").ok()?,
            own_stream: *library.get(b"starling_own_stream").ok()?,
            synchronize: *library.get(b"starling_synchronize").ok()?,
            use_device: *library.get(b"starling_use_device").ok()?,
            stream: *library.get(b"starling_stream").ok()?,
            stream_query: *library.get(b"starling_stream_query").ok()?,
            mark_new: *library.get(b"starling_mark_new").ok()?,
            mark_wait: *library.get(b"starling_mark_wait").ok()?,
            mark_free: *library.get(b"starling_mark_free").ok()?,
            graph_new: *library.get(b"starling_graph_new").ok()?,
            graph_free: *library.get(b"starling_graph_free").ok()?,
            graph_begin: *library.get(b"starling_graph_begin").ok()?,
            graph_end: *library.get(b"starling_graph_end").ok()?,
            graph_replay: *library.get(b"starling_graph_replay").ok()?,
        })
    }
}

/// Gives the calling thread a separate stream on a GPU; does nothing elsewhere.
pub fn own_stream(device: Device) {
    stream(device, false);
}

/// Gives the calling thread a separate stream on a GPU, whose work has priority over pending work
/// of others: actors wait for every answer, learners have work in advance. It must be the first
/// that the thread asks of the GPU. Does nothing elsewhere.
pub fn urgent_stream(device: Device) {
    stream(device, true);
}

fn stream(device: Device, urgent: bool) {
    if let (Device::Cuda(index), Some(cuda)) = (device, cuda()) {
        // SAFETY: plain numbers go in; the device's number is libtorch's own.
        let code = unsafe { (cuda.own_stream)(index as c_int, c_int::from(urgent)) };
        checked(code, cuda.error);
    }
}

/// Waits until a GPU has done all that the calling thread asked of it; does nothing elsewhere.
pub fn synchronize(device: Device) {
    match (device, cuda()) {
        (Device::Cuda(index), Some(cuda)) => {
            // SAFETY: plain numbers go in; the device's number is libtorch's own.
            let code = unsafe { (cuda.synchronize)(index as c_int) };
            checked(code, cuda.error);
        }
        (Device::Cuda(index), None) => tch::Cuda::synchronize(index as i64),
        _ => {}
    }
}

/// A point in what a thread asked of a GPU, which any thread can wait for.
pub(crate) struct Mark {
    event: *mut c_void,
    cuda: &'static Cuda,
}

// SAFETY: CUDA's events may be waited for by several threads at once, and freed by any.
unsafe impl Send for Mark {}
// SAFETY: as above; nothing else can be done with a shared reference.
unsafe impl Sync for Mark {}

impl Mark {
    /// Behind all that the calling thread asked of a device so far. `None` where that is done
    /// already.
    pub(crate) fn here(device: Device) -> Option<Self> {
        match (device, cuda()) {
            (Device::Cuda(index), Some(cuda)) => {
                // SAFETY: plain numbers go in; the device's number is libtorch's own.
                let event = unsafe { (cuda.mark_new)(index as c_int) };
                checked(c_int::from(event.is_null()), cuda.error);
                Some(Self { event, cuda })
            }
            _ => {
                synchronize(device);
                None
            }
        }
    }

    /// Waits until the device has come so far.
    pub(crate) fn wait(&self) {
        // SAFETY: the event lives as long as `self`.
        checked(
            unsafe { (self.cuda.mark_wait)(self.event) },
            self.cuda.error,
        );
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: the event was made by `mark_new` and is freed once.
        unsafe { (self.cuda.mark_free)(self.event) }
    }
}

/// A CUDA graph: empty, being recorded, or ready.
pub(crate) struct RawGraph {
    graph: *mut c_void,
    cuda: &'static Cuda,
}

// SAFETY: libtorch's graph may be replayed and freed from any thread, by one at a time, which
// `&mut` and ownership ensure.
unsafe impl Send for RawGraph {}

impl RawGraph {
    /// `None` where there are no graphs.
    pub(crate) fn new() -> Option<Self> {
        let cuda = cuda()?;
        // SAFETY: no arguments; the result is checked.
        let graph = unsafe { (cuda.graph_new)() };
        (!graph.is_null()).then_some(Self { graph, cuda })
    }

    /// Records what the thread asks of the GPU until [`end`](RawGraph::end), without doing it.
    pub(crate) fn begin(&mut self) {
        // SAFETY: the graph lives as long as `self`.
        checked(
            unsafe { (self.cuda.graph_begin)(self.graph) },
            self.cuda.error,
        );
    }

    pub(crate) fn end(&mut self) {
        // SAFETY: the graph lives as long as `self`.
        checked(
            unsafe { (self.cuda.graph_end)(self.graph) },
            self.cuda.error,
        );
    }

    pub(crate) fn replay(&mut self) {
        // SAFETY: the graph lives as long as `self`, and the tensors that it works on as long
        // as its owner, which keeps them.
        checked(
            unsafe { (self.cuda.graph_replay)(self.graph) },
            self.cuda.error,
        );
    }
}

impl Drop for RawGraph {
    fn drop(&mut self) {
        // SAFETY: the graph was made by `graph_new` and is freed once.
        unsafe { (self.cuda.graph_free)(self.graph) }
    }
}
