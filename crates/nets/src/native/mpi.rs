//! MPI, opened at run time: Open MPI, or MPICH and the libraries with its binary interface. Nothing of
//! it is needed to build or to start the program.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::{Duration, Instant};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use tch::{Kind, Tensor};

/// By their file names: Open MPI, MPICH, and libraries with MPICH's interface such as Intel MPI.
const LIBRARIES: [&str; 3] = ["libmpi.so.40", "libmpich.so.12", "libmpi.so.12"];

/// Calls from several threads, one at a time. The number is the same in all libraries.
const THREAD_SERIALIZED: c_int = 2;

/// How long a wait keeps its core busy, as long as nobody else wants it.
const PATIENCE: Duration = Duration::from_millis(100);

/// The longest text of a library.
const TEXT: usize = 8192;

/// A handle of MPI: a pointer in Open MPI, an int in MPICH, which is the lower half of this.
type Object = *mut c_void;

type Errors = unsafe extern "C" fn(Object, Object) -> c_int;
type Number = unsafe extern "C" fn(Object, *mut c_int) -> c_int;
type Text = unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int;
type AllReduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    c_int,
    Object,
    Object,
    Object,
    *mut Object,
) -> c_int;
type Broadcast =
    unsafe extern "C" fn(*mut c_void, c_int, Object, c_int, Object, *mut Object) -> c_int;
type Test = unsafe extern "C" fn(*mut Object, *mut c_int, *mut c_void) -> c_int;
type Combine = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut Object);

/// The processes that `mpirun` started. Calls come from one thread at a time.
pub(crate) struct World {
    rank: usize,
    size: usize,
    all_reduce: AllReduce,
    broadcast: Broadcast,
    test: Test,
    error_text: Text,
    finalize: unsafe extern "C" fn() -> c_int,
    handles: Handles,
    /// The sum of bfloat16 numbers, which MPI does not know.
    sum_bf16: Object,
}

// SAFETY: MPI is told that calls come from several threads, one at a time; `World` is only used behind
// a lock. Handles belong to no thread.
unsafe impl Send for World {}

/// The constants of an implementation.
#[derive(Clone, Copy)]
struct Handles {
    world: Object,
    byte: Object,
    short: Object,
    float: Object,
    sum: Object,
    errors_return: Object,
    in_place: *const c_void,
    status_ignore: *mut c_void,
}

impl Handles {
    fn find(library: &Library) -> Result<Self, String> {
        let number = |value: usize| std::ptr::without_provenance_mut::<c_void>(value);
        // SAFETY: these symbols are objects, of which only the address is taken.
        let symbol = |name: &str| unsafe {
            let found = library.get::<*mut c_void>(name.as_bytes());
            found.map(|found| found.as_raw_ptr())
        };
        if symbol("ompi_mpi_comm_world").is_err() {
            // MPICH's mpi.h, the same for all libraries with its binary interface.
            return Ok(Self {
                world: number(0x4400_0000),
                byte: number(0x4c00_010d),
                short: number(0x4c00_0203),
                float: number(0x4c00_040a),
                sum: number(0x5800_0003),
                errors_return: number(0x5400_0001),
                in_place: number(usize::MAX),
                status_ignore: number(1),
            });
        }
        let symbol = |name: &str| symbol(name).map_err(|error| error.to_string());
        Ok(Self {
            world: symbol("ompi_mpi_comm_world")?,
            byte: symbol("ompi_mpi_byte")?,
            short: symbol("ompi_mpi_short")?,
            float: symbol("ompi_mpi_float")?,
            sum: symbol("ompi_mpi_op_sum")?,
            errors_return: symbol("ompi_mpi_errors_return")?,
            in_place: number(1),
            status_ignore: std::ptr::null_mut(),
        })
    }
}

impl World {
    /// Opens a library and initialises MPI, which can be done once in a process.
    pub(crate) fn open() -> Result<Self, String> {
        // SAFETY: MPI's libraries are made to be loaded; Open MPI's plugins need global symbols.
        let open = |name: &&str| unsafe { Library::open(Some(*name), RTLD_NOW | RTLD_GLOBAL).ok() };
        let library = LIBRARIES.iter().find_map(open).ok_or_else(|| {
            format!(
                "no MPI library was found (looked for {}); install Open MPI or MPICH, or set \
                 collective=gloo",
                LIBRARIES.join(", ")
            )
        })?;
        let handles = Handles::find(&library)?;
        let missing = |error: libloading::Error| error.to_string();
        // SAFETY: every name is looked up with its type in MPI's standard, where handles are as wide as
        // a register or narrower.
        unsafe {
            let init = library.get::<unsafe extern "C" fn(
                *mut c_int,
                *mut c_void,
                c_int,
                *mut c_int,
            ) -> c_int>(b"MPI_Init_thread");
            let init = *init.map_err(missing)?;
            let number = |name: &[u8]| library.get::<Number>(name).map(|found| *found);
            let (rank, size) = (number(b"MPI_Comm_rank"), number(b"MPI_Comm_size"));
            let (rank_of, size_of) = (rank.map_err(missing)?, size.map_err(missing)?);
            let set_errors = *library
                .get::<Errors>(b"MPI_Comm_set_errhandler")
                .map_err(missing)?;
            let create = library.get::<unsafe extern "C" fn(Combine, c_int, *mut Object) -> c_int>(
                b"MPI_Op_create",
            );
            let create = *create.map_err(missing)?;
            let mut world = Self {
                rank: 0,
                size: 0,
                all_reduce: *library.get(b"MPI_Iallreduce").map_err(missing)?,
                broadcast: *library.get(b"MPI_Ibcast").map_err(missing)?,
                test: *library.get(b"MPI_Test").map_err(missing)?,
                error_text: *library.get(b"MPI_Error_string").map_err(missing)?,
                finalize: *library.get(b"MPI_Finalize").map_err(missing)?,
                handles,
                sum_bf16: std::ptr::null_mut(),
            };
            // It stays open: it may have threads and exit handlers.
            std::mem::forget(library);
            let (none, mut threads) = (std::ptr::null_mut(), 0);
            let code = init(none, none.cast(), THREAD_SERIALIZED, &raw mut threads);
            world.checked(code)?;
            if threads < THREAD_SERIALIZED {
                return Err("this MPI library cannot be used by a program with threads".into());
            }
            // Errors are returned; otherwise they end the process.
            world.checked(set_errors(handles.world, handles.errors_return))?;
            let (mut rank, mut size) = (0, 0);
            world.checked(rank_of(handles.world, &raw mut rank))?;
            world.checked(size_of(handles.world, &raw mut size))?;
            (world.rank, world.size) = (rank as usize, size as usize);
            let commutes = 1;
            let code = create(add_bf16, commutes, &raw mut world.sum_bf16);
            world.checked(code)?;
            Ok(world)
        }
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Replaces a contiguous tensor of the host by its sum over all processes.
    pub(crate) fn sum(&mut self, values: &Tensor, timeout: Duration) -> Result<(), String> {
        let (kind, sum) = match values.kind() {
            Kind::Float => (self.handles.float, self.handles.sum),
            Kind::BFloat16 => (self.handles.short, self.sum_bf16),
            kind => return Err(format!("MPI cannot add {kind:?} here")),
        };
        let (data, count) = (data(values)?, count(values, 1)?);
        let mut request = std::ptr::null_mut();
        // SAFETY: the tensor has `count` numbers of this kind in host memory, which stay there until
        // the request is done (`wait`).
        let code = unsafe {
            (self.all_reduce)(
                self.handles.in_place,
                data,
                count,
                kind,
                sum,
                self.handles.world,
                &raw mut request,
            )
        };
        self.checked(code)?;
        self.wait(request, values, timeout)
    }

    /// Replaces a contiguous tensor of the host by that of a process.
    pub(crate) fn broadcast(
        &mut self,
        values: &Tensor,
        root: usize,
        timeout: Duration,
    ) -> Result<(), String> {
        let bytes = values.kind().elt_size_in_bytes();
        let (data, count) = (data(values)?, count(values, bytes)?);
        let (byte, world) = (self.handles.byte, self.handles.world);
        let mut request = std::ptr::null_mut();
        // SAFETY: as in `sum`, with `count` bytes.
        let code =
            unsafe { (self.broadcast)(data, count, byte, root as c_int, world, &raw mut request) };
        self.checked(code)?;
        self.wait(request, values, timeout)
    }

    /// Ends MPI in this process. Waits for the other processes to do the same.
    pub(crate) fn finalize(&mut self) -> Result<(), String> {
        // SAFETY: MPI is initialised, and nothing is called after this: the owner drops the world.
        let code = unsafe { (self.finalize)() };
        self.checked(code)
    }

    /// MPI moves data only while it is called. Other threads get the core in between.
    fn wait(&self, mut request: Object, values: &Tensor, timeout: Duration) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let mut done = 0;
            // SAFETY: the request is alive until it is done, and its place is this variable.
            let code =
                unsafe { (self.test)(&raw mut request, &raw mut done, self.handles.status_ignore) };
            let result = self.checked(code);
            if result.is_ok() && done != 0 {
                return Ok(());
            }
            let late = began.elapsed() > timeout;
            if result.is_err() || late {
                // The library may still write there.
                std::mem::forget(values.shallow_clone());
                result?;
                return Err(format!("no answer within {} s", timeout.as_secs()));
            }
            match began.elapsed() < PATIENCE {
                true => std::thread::yield_now(),
                false => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn checked(&self, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut length) = ([0 as c_char; TEXT], 0);
        // SAFETY: the text has room for the longest of any library, and ends with a zero.
        let message = unsafe {
            (self.error_text)(code, text.as_mut_ptr(), &raw mut length);
            text[TEXT - 1] = 0;
            CStr::from_ptr(text.as_ptr())
        };
        Err(message.to_string_lossy().into_owned())
    }
}

fn data(values: &Tensor) -> Result<*mut c_void, String> {
    match values.device() == tch::Device::Cpu && values.is_contiguous() {
        true => Ok(values.data_ptr()),
        false => Err("MPI needs contiguous numbers of the host".into()),
    }
}

fn count(values: &Tensor, each: usize) -> Result<c_int, String> {
    let count = c_int::try_from(values.numel() * each);
    count.map_err(|_| "a tensor is too large for MPI".to_owned())
}

/// `other[i] += own[i]` for bfloat16 numbers, rounded to the nearest.
unsafe extern "C" fn add_bf16(
    own: *mut c_void,
    other: *mut c_void,
    length: *mut c_int,
    _kind: *mut Object,
) {
    // SAFETY: MPI gives two separate vectors of 16-bit numbers and their length.
    let (own, other) = unsafe {
        let length = usize::try_from(*length).unwrap_or(0);
        (
            std::slice::from_raw_parts(own.cast::<u16>(), length),
            std::slice::from_raw_parts_mut(other.cast::<u16>(), length),
        )
    };
    for (own, other) in own.iter().zip(other) {
        *other = rounded(wide(*own) + wide(*other));
    }
}

fn wide(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// To the nearest, with ties to even.
fn rounded(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As libtorch rounds, for all exponents, ties and carries.
    #[test]
    fn sums_are_rounded_as_libtorch_does() {
        let bits = (0..=0xffff_u32).map(|high| high << 16 | high.wrapping_mul(0x9e37) & 0xffff);
        let ties = (0..=0xffff_u32).map(|high| high << 16 | 0x8000);
        let values: Vec<f32> = bits.chain(ties).map(f32::from_bits).collect();
        let values: Vec<f32> = values.into_iter().filter(|value| !value.is_nan()).collect();
        let theirs = Tensor::from_slice(&values).to_kind(Kind::BFloat16);
        let theirs = Vec::<f32>::try_from(theirs.to_kind(Kind::Float)).unwrap();
        for (value, theirs) in values.into_iter().zip(theirs) {
            assert_eq!(
                wide(rounded(value)).to_bits(),
                theirs.to_bits(),
                "{value:e}"
            );
        }
    }
}
