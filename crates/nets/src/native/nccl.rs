//! NCCL, opened at run time: eight functions of `libnccl.so.2`, which comes with libtorch for CUDA.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use libloading::Library;
use tch::{Device, Kind, Tensor};

use super::{checked, cuda};

/// Already loaded where libtorch uses CUDA.
const LIBRARY: &str = "libnccl.so.2";

/// How long an abort may take.
const ABORT: Duration = Duration::from_secs(10);

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Id(pub(crate) [u8; 128]);

type Communicator = *mut c_void;
type Stream = *mut c_void;

struct Functions {
    get_unique_id: unsafe extern "C" fn(*mut Id) -> c_int,
    init_rank: unsafe extern "C" fn(*mut Communicator, c_int, Id, c_int) -> c_int,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Communicator,
        Stream,
    ) -> c_int,
    broadcast: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Communicator,
        Stream,
    ) -> c_int,
    async_error: unsafe extern "C" fn(Communicator, *mut c_int) -> c_int,
    abort: unsafe extern "C" fn(Communicator) -> c_int,
    error_text: unsafe extern "C" fn(c_int) -> *const c_char,
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
}

static FUNCTIONS: OnceLock<Result<Functions, String>> = OnceLock::new();

fn functions() -> Result<&'static Functions, String> {
    let found = FUNCTIONS.get_or_init(open);
    found.as_ref().map_err(Clone::clone)
}

fn open() -> Result<Functions, String> {
    let missing = |error: libloading::Error| {
        format!(
            "NCCL cannot be used ({error}); it comes with libtorch for CUDA, or set collective=gloo"
        )
    };
    // SAFETY: NCCL is made to be loaded, and is never unloaded. Every name is looked up with its type in
    // nccl.h.
    unsafe {
        let library = Box::leak(Box::new(Library::new(LIBRARY).map_err(missing)?));
        Ok(Functions {
            get_unique_id: *library.get(b"ncclGetUniqueId").map_err(missing)?,
            init_rank: *library.get(b"ncclCommInitRank").map_err(missing)?,
            all_reduce: *library.get(b"ncclAllReduce").map_err(missing)?,
            broadcast: *library.get(b"ncclBroadcast").map_err(missing)?,
            async_error: *library.get(b"ncclCommGetAsyncError").map_err(missing)?,
            abort: *library.get(b"ncclCommAbort").map_err(missing)?,
            error_text: *library.get(b"ncclGetErrorString").map_err(missing)?,
            version: *library.get(b"ncclGetVersion").map_err(missing)?,
        })
    }
}

impl Functions {
    fn checked(&self, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a terminated text of the library for every number.
        let text = unsafe { CStr::from_ptr((self.error_text)(code)) };
        Err(format!("NCCL: {}", text.to_string_lossy()))
    }
}

/// The library's version, such as 22809 for 2.28.9.
pub(crate) fn version() -> Result<i32, String> {
    let functions = functions()?;
    let mut version = 0;
    // SAFETY: it writes one number.
    functions.checked(unsafe { (functions.version)(&raw mut version) })?;
    Ok(version)
}

/// An identifier of a new group, for its first member to give to the others.
pub(crate) fn new_id() -> Result<Id, String> {
    let functions = functions()?;
    let mut id = Id([0; 128]);
    // SAFETY: it writes one identifier.
    functions.checked(unsafe { (functions.get_unique_id)(&raw mut id) })?;
    Ok(id)
}

/// A communicator on its way from the thread that made it.
struct Made(Communicator);

// SAFETY: a communicator belongs to no thread, and is used by one at a time.
unsafe impl Send for Made {}

impl Made {
    fn abort(self, functions: &Functions) {
        // SAFETY: the communicator is not used by anybody else any more. A failure changes nothing.
        let _ = unsafe { (functions.abort)(self.0) };
    }
}

/// One member of a group.
pub(crate) struct Nccl {
    communicator: Communicator,
    device: usize,
    timeout: Duration,
}

// SAFETY: as above.
unsafe impl Send for Nccl {}

impl Nccl {
    /// Joins a group on a GPU. The calling thread uses that GPU from now on, with a stream of its own.
    pub(crate) fn new(
        id: Id,
        (rank, size): (usize, usize),
        device: usize,
        timeout: Duration,
    ) -> Result<Self, String> {
        let functions = functions()?;
        let cuda = cuda().ok_or("this program was built without CUDA, which NCCL needs")?;
        super::own_stream(Device::Cuda(device));
        // In a thread of its own, because it waits for the others without a limit.
        let (done, made) = channel();
        let work = move || {
            let mut communicator = std::ptr::null_mut();
            // SAFETY: a plain number goes in.
            checked(unsafe { (cuda.use_device)(device as c_int) }, cuda.error);
            // SAFETY: it writes one communicator, for the thread's device.
            let code = unsafe {
                (functions.init_rank)(&raw mut communicator, size as c_int, id, rank as c_int)
            };
            let result = functions.checked(code).map(|()| Made(communicator));
            // If nobody waits any more, the communicator stays as it is: the others are gone.
            let _ = done.send(result);
        };
        let thread = std::thread::Builder::new().name("nccl".into()).spawn(work);
        thread.map_err(|error| error.to_string())?;
        let made = made.recv_timeout(timeout);
        let Made(communicator) =
            made.map_err(|_| format!("NCCL: no group within {} s", timeout.as_secs()))??;
        Ok(Self {
            communicator,
            device,
            timeout,
        })
    }

    /// Replaces a contiguous tensor of the GPU by its sum over the group.
    pub(crate) fn sum(&mut self, values: &Tensor) -> Result<(), String> {
        let (functions, stream) = (functions()?, self.stream(values)?);
        let (data, count, kind) = (values.data_ptr(), values.numel(), number(values.kind())?);
        const SUM: c_int = 0;
        // SAFETY: the tensor has `count` numbers of this kind on the communicator's GPU, and lives until
        // the stream is done (`wait`).
        let code = unsafe {
            (functions.all_reduce)(data, data, count, kind, SUM, self.communicator, stream)
        };
        functions.checked(code)?;
        self.wait(values)
    }

    /// Replaces a contiguous tensor of the GPU by that of a member.
    pub(crate) fn broadcast(&mut self, values: &Tensor, root: usize) -> Result<(), String> {
        let (functions, stream) = (functions()?, self.stream(values)?);
        let (data, count, kind) = (values.data_ptr(), values.numel(), number(values.kind())?);
        let root = root as c_int;
        // SAFETY: as in `sum`.
        let code = unsafe {
            (functions.broadcast)(data, data, count, kind, root, self.communicator, stream)
        };
        functions.checked(code)?;
        self.wait(values)
    }

    /// The calling thread's stream on the GPU.
    fn stream(&self, values: &Tensor) -> Result<Stream, String> {
        if values.device() != Device::Cuda(self.device) || !values.is_contiguous() {
            return Err("NCCL needs contiguous numbers of its GPU".into());
        }
        let cuda = cuda().ok_or("this program was built without CUDA")?;
        // SAFETY: a plain number goes in; the thread uses the device from now on.
        checked(
            unsafe { (cuda.use_device)(self.device as c_int) },
            cuda.error,
        );
        // SAFETY: a plain number goes in.
        Ok(unsafe { (cuda.stream)(self.device as c_int) })
    }

    /// Waits until the stream is done, a member is lost, or the time is over.
    fn wait(&self, values: &Tensor) -> Result<(), String> {
        let functions = functions()?;
        let cuda = cuda().ok_or("this program was built without CUDA")?;
        let began = Instant::now();
        loop {
            // SAFETY: a plain number goes in.
            let code = unsafe { (cuda.stream_query)(self.device as c_int) };
            if code == 0 {
                return Ok(());
            }
            let mut error = 0;
            // SAFETY: the communicator is alive, and one number is written.
            let asked = unsafe { (functions.async_error)(self.communicator, &raw mut error) };
            let result = functions.checked(asked).and(functions.checked(error));
            let late = began.elapsed() > self.timeout;
            if code < 0 || result.is_err() || late {
                // The GPU may still write there.
                std::mem::forget(values.shallow_clone());
                result?;
                return Err(match code < 0 {
                    true => "the GPU reported an error".to_owned(),
                    false => format!("no answer within {} s", self.timeout.as_secs()),
                });
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Nccl {
    /// An abort needs no other member. It can hang nevertheless, and is then left behind.
    fn drop(&mut self) {
        let (Ok(functions), made) = (functions(), Made(self.communicator)) else {
            return;
        };
        let (done, aborted) = channel();
        let work = move || {
            made.abort(functions);
            let _ = done.send(());
        };
        let thread = std::thread::Builder::new().name("nccl".into()).spawn(work);
        if thread.is_ok() {
            // Only the wait is bounded.
            let _ = aborted.recv_timeout(ABORT);
        }
    }
}

/// `ncclDataType_t`.
fn number(kind: Kind) -> Result<c_int, String> {
    match kind {
        Kind::Uint8 => Ok(1),
        Kind::Float => Ok(7),
        Kind::BFloat16 => Ok(9),
        kind => Err(format!("NCCL cannot send {kind:?} here")),
    }
}
