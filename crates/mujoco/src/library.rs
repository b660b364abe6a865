//! MuJoCo's C interface, and all `unsafe` code of this crate.
//!
//! [`Library`] is the opened shared library, [`Model`] a compiled model, [`Simulation`] its state.
//! Their methods are safe. What makes them so:
//!
//! - **Layout.** Fields of `mjModel` and `mjData` are read at the offsets in [`layout`], which hold for
//!   one version. [`Library::open`] refuses every other version, and [`Model`] and [`Simulation`]
//!   compare what they read there with what MuJoCo's functions say about the same model.
//! - **Lifetime.** A model holds its library, and a simulation its model; the library is never closed.
//! - **Sharing.** MuJoCo only reads a model after it has been compiled, so threads may share it. We
//!   change one through `&mut` only, which nobody has once it is shared. The same holds for a
//!   simulation.
//! - **Errors.** MuJoCo reports an error that it cannot continue from by a handler that must not
//!   return. Ours unwinds to the call in this file, which marks the simulation as unusable: its stack
//!   is not in order any more, so nothing but its end is allowed.

#![expect(
    unsafe_code,
    reason = "there is no safe way to call a library opened at run time"
)]

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::Arc;

use crate::MujocoError;
use crate::layout;

type RawModel = c_void;
type RawData = c_void;
/// `mjVFS`: one pointer, which MuJoCo fills.
type Vfs = *mut c_void;

/// The functions of the library that are used. They may unwind: see `on_message`.
struct Functions {
    version: unsafe extern "C" fn() -> c_int,
    set_log_handler: unsafe extern "C" fn(LogHandler) -> *mut c_void,
    default_vfs: unsafe extern "C-unwind" fn(*mut Vfs),
    add_buffer_vfs:
        unsafe extern "C-unwind" fn(*mut Vfs, *const c_char, *const c_void, c_int) -> c_int,
    delete_vfs: unsafe extern "C-unwind" fn(*mut Vfs),
    load_xml:
        unsafe extern "C-unwind" fn(*const c_char, *const Vfs, *mut c_char, c_int) -> *mut RawModel,
    delete_model: unsafe extern "C-unwind" fn(*mut RawModel),
    name_to_id: unsafe extern "C-unwind" fn(*const RawModel, c_int, *const c_char) -> c_int,
    state_size: unsafe extern "C-unwind" fn(*const RawModel, c_int) -> c_int,
    make_data: unsafe extern "C-unwind" fn(*const RawModel) -> *mut RawData,
    delete_data: unsafe extern "C-unwind" fn(*mut RawData),
    reset_data: unsafe extern "C-unwind" fn(*const RawModel, *mut RawData),
    forward: unsafe extern "C-unwind" fn(*const RawModel, *mut RawData),
    step: unsafe extern "C-unwind" fn(*const RawModel, *mut RawData),
    kinematics: unsafe extern "C-unwind" fn(*const RawModel, *mut RawData),
    rne_post_constraint: unsafe extern "C-unwind" fn(*const RawModel, *mut RawData),
    get_state: unsafe extern "C-unwind" fn(*const RawModel, *const RawData, *mut f64, c_int),
    set_state: unsafe extern "C-unwind" fn(*const RawModel, *mut RawData, *const f64, c_int),
}

type LogHandler = unsafe extern "C-unwind" fn(*const c_void);

/// The shared library, opened and of the right version.
pub struct Library {
    functions: Functions,
    path: PathBuf,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Library").field(&self.path).finish()
    }
}

impl Library {
    /// Opens a shared library. It stays open until the program ends.
    ///
    /// # Errors
    /// When the file is no library, another version of MuJoCo, or lacks a function.
    pub fn open(path: &Path) -> Result<Self, MujocoError> {
        crate::elf::check_whole(path)?;
        // SAFETY: opening a library runs its initialisers, which are harmless in MuJoCo's. That the
        // file is what it claims to be can only be taken on trust, as with every library of the
        // system; ours comes from a wheel with a known SHA-256.
        let open = unsafe { libloading::Library::new(path) };
        let open = open.map_err(|cause| MujocoError::NotALibrary {
            path: path.to_owned(),
            cause: cause.to_string(),
        })?;
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the type of each field of `Functions` is that of its function in mujoco.h,
                // with structures as opaque pointers. The library is never closed, so the pointer
                // stays valid.
                let symbol = unsafe { open.get(concat!($name, "\0")) };
                *symbol.map_err(|_| MujocoError::NoFunction {
                    path: path.to_owned(),
                    name: $name,
                })?
            }};
        }
        let version: unsafe extern "C" fn() -> c_int = function!("mj_version");
        // SAFETY: it takes nothing and returns a number.
        let found = unsafe { version() };
        if found != layout::VERSION {
            return Err(MujocoError::Version {
                path: path.to_owned(),
                found,
            });
        }
        let functions = Functions {
            version,
            set_log_handler: function!("mju_setLogHandler"),
            default_vfs: function!("mj_defaultVFS"),
            add_buffer_vfs: function!("mj_addBufferVFS"),
            delete_vfs: function!("mj_deleteVFS"),
            load_xml: function!("mj_loadXML"),
            delete_model: function!("mj_deleteModel"),
            name_to_id: function!("mj_name2id"),
            state_size: function!("mj_stateSize"),
            make_data: function!("mj_makeData"),
            delete_data: function!("mj_deleteData"),
            reset_data: function!("mj_resetData"),
            forward: function!("mj_forward"),
            step: function!("mj_step"),
            kinematics: function!("mj_kinematics"),
            rne_post_constraint: function!("mj_rnePostConstraint"),
            get_state: function!("mj_getState"),
            set_state: function!("mj_setState"),
        };
        // SAFETY: the handler has the type that it asks for, and lives as long as the program.
        unsafe { (functions.set_log_handler)(on_message) };
        std::mem::forget(open);
        Ok(Self {
            functions,
            path: path.to_owned(),
        })
    }

    /// The file that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version, as MuJoCo writes it: 3017000 is 3.17.0.
    pub fn version(&self) -> i32 {
        // SAFETY: it takes nothing and returns a number.
        unsafe { (self.functions.version)() }
    }
}

/// What MuJoCo says. An error unwinds to where MuJoCo was called. Everything else is dropped: by
/// default it would be printed and appended to a file in the current folder, and the warnings that
/// matter are counted in the data.
unsafe extern "C-unwind" fn on_message(message: *const c_void) {
    // SAFETY: MuJoCo passes an `mjLogMessage`, whose subject is an array that ends with a zero.
    let (level, subject) = unsafe {
        let level = *message.byte_add(layout::message::LEVEL).cast::<c_int>();
        let subject = message.byte_add(layout::message::SUBJECT).cast::<c_char>();
        (
            level,
            CStr::from_ptr(subject).to_string_lossy().into_owned(),
        )
    };
    if level == layout::LOG_ERROR {
        // Not `panic!`: nothing is to be printed for an error that becomes a `Result`.
        resume_unwind(Box::new(Stopped(subject)));
    }
}

/// What `on_message` unwinds with.
struct Stopped(String);

/// Calls into MuJoCo, and turns its fatal errors into ours.
fn guarded<R>(call: impl FnOnce() -> R) -> Result<R, MujocoError> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|thrown: Box<dyn Any + Send>| {
        match thrown.downcast::<Stopped>() {
            Ok(stopped) => MujocoError::Stopped(stopped.0),
            Err(other) => resume_unwind(other),
        }
    })
}

/// A compiled model. Simulations of all threads may share it.
pub struct Model {
    library: Arc<Library>,
    raw: NonNull<RawModel>,
}

// SAFETY: MuJoCo does not change a compiled model, and we do through `&mut` only.
unsafe impl Send for Model {}
// SAFETY: the same.
unsafe impl Sync for Model {}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut model = f.debug_struct("Model");
        model.field("nq", &self.nq()).field("nv", &self.nv());
        model.field("nu", &self.nu()).finish_non_exhaustive()
    }
}

impl Model {
    /// Compiles a model from the text of an MJCF file that includes no others; `name` is for messages.
    ///
    /// # Errors
    /// When the text is no model, with MuJoCo's reason.
    pub fn from_text(library: &Arc<Library>, name: &str, text: &str) -> Result<Self, MujocoError> {
        let functions = &library.functions;
        let bad = |reason: &str| MujocoError::Model {
            name: name.to_owned(),
            reason: reason.to_owned(),
        };
        let file = CString::new(name).map_err(|_| bad("its name has a zero byte"))?;
        let length = c_int::try_from(text.len()).map_err(|_| bad("it is too long"))?;
        let mut vfs: Vfs = null_mut();
        // SAFETY: an `mjVFS` is one pointer, which the first call initialises and the last frees. The
        // buffer is copied, and `file` is the name under which it is found again.
        guarded(|| unsafe {
            (functions.default_vfs)(&raw mut vfs);
            let buffer = text.as_ptr().cast();
            let code = (functions.add_buffer_vfs)(&raw mut vfs, file.as_ptr(), buffer, length);
            let loaded = match code {
                0 => load(functions, &file, &raw const vfs),
                code => Err(format!("MuJoCo does not take its text (code {code})")),
            };
            (functions.delete_vfs)(&raw mut vfs);
            loaded
        })?
        .map_err(|reason| bad(&reason))
        .and_then(|raw| Self::checked(library, raw))
    }

    /// Compiles the model of an MJCF file.
    ///
    /// # Errors
    /// When the file cannot be read or is no model, with MuJoCo's reason.
    pub fn from_file(library: &Arc<Library>, path: &Path) -> Result<Self, MujocoError> {
        let bad = |reason: String| MujocoError::Model {
            name: path.display().to_string(),
            reason,
        };
        std::fs::metadata(path).map_err(|cause| bad(cause.to_string()))?;
        let file = CString::new(path.to_string_lossy().as_bytes());
        let file = file.map_err(|_| bad("its name has a zero byte".into()))?;
        // SAFETY: no `mjVFS` is passed, so the file is read from the disk.
        let loaded = guarded(|| unsafe { load(&library.functions, &file, std::ptr::null()) })?;
        Self::checked(library, loaded.map_err(bad)?)
    }

    /// Compares sizes read from the structure with those that MuJoCo computes.
    fn checked(library: &Arc<Library>, raw: NonNull<RawModel>) -> Result<Self, MujocoError> {
        let model = Self {
            library: Arc::clone(library),
            raw,
        };
        let says = |part| model.state_size(part);
        let same = model.nq() == says(layout::STATE_QPOS)?
            && model.nv() == says(layout::STATE_QVEL)?
            && model.nu() == says(layout::STATE_CTRL)?
            && 6 * model.nbody() == says(layout::STATE_XFRC_APPLIED)?
            && model.timestep() > 0.0
            && model.body_masses().iter().all(|mass| *mass >= 0.0);
        if !same {
            return Err(MujocoError::Layout(library.path.clone()));
        }
        if model.number(layout::model::NTREE) == 1 {
            // All constraints of a single kinematic tree are one island. To look for it changes no bit
            // of the results and takes time (Ant: 6 %).
            // SAFETY: the offset is that of an `int`, and nobody else has the model.
            unsafe {
                let flags = model.raw.as_ptr().byte_add(layout::model::OPT_DISABLEFLAGS);
                *flags.cast::<i32>() |= layout::DSBL_ISLAND;
            }
        }
        Ok(model)
    }

    fn state_size(&self, part: i32) -> Result<usize, MujocoError> {
        // SAFETY: the model is one, and `part` names parts of a state.
        let size =
            guarded(|| unsafe { (self.library.functions.state_size)(self.raw.as_ptr(), part) })?;
        Ok(size.max(0) as usize)
    }

    /// The number of a body.
    pub fn body(&self, name: &str) -> Option<usize> {
        let name = CString::new(name).ok()?;
        // SAFETY: the model is one, and the name ends with a zero.
        let id = guarded(|| unsafe {
            let find = self.library.functions.name_to_id;
            find(self.raw.as_ptr(), layout::OBJ_BODY, name.as_ptr())
        });
        usize::try_from(id.ok()?).ok()
    }

    /// A number of the structure.
    fn number(&self, offset: usize) -> usize {
        // SAFETY: the offset is that of an `mjtSize`, an `int64_t`.
        let number = unsafe { *self.raw.as_ptr().byte_add(offset).cast::<i64>() };
        usize::try_from(number).unwrap_or(0)
    }

    /// An array that the structure points to.
    fn array<T>(&self, offset: usize, length: usize) -> &[T] {
        // SAFETY: the offset is that of a pointer to `length` numbers of this type, which MuJoCo
        // allocated with the model and frees with it.
        unsafe { array(self.raw, offset, length) }
    }

    /// Positions of joints.
    pub fn nq(&self) -> usize {
        self.number(layout::model::NQ)
    }

    /// Degrees of freedom.
    pub fn nv(&self) -> usize {
        self.number(layout::model::NV)
    }

    /// Controls.
    pub fn nu(&self) -> usize {
        self.number(layout::model::NU)
    }

    /// Bodies, of which the first is the world.
    pub fn nbody(&self) -> usize {
        self.number(layout::model::NBODY)
    }

    /// Geoms.
    pub fn ngeom(&self) -> usize {
        self.number(layout::model::NGEOM)
    }

    /// Sites.
    pub fn nsite(&self) -> usize {
        self.number(layout::model::NSITE)
    }

    /// Seconds per step.
    pub fn timestep(&self) -> f64 {
        // SAFETY: the offset is that of an `mjtNum`, a `double`.
        unsafe {
            let timestep = self.raw.as_ptr().byte_add(layout::model::OPT_TIMESTEP);
            *timestep.cast::<f64>()
        }
    }

    /// The mass of each body.
    pub fn body_masses(&self) -> &[f64] {
        self.array(layout::model::BODY_MASS, self.nbody())
    }

    /// The smallest and largest value of each control.
    pub fn control_ranges(&self) -> &[[f64; 2]] {
        self.array(layout::model::ACTUATOR_CTRLRANGE, self.nu())
    }

    /// Sets the seconds per step.
    pub(crate) fn set_timestep(&mut self, seconds: f64) {
        // SAFETY: as in `timestep`; nobody else has the model.
        unsafe {
            let timestep = self.raw.as_ptr().byte_add(layout::model::OPT_TIMESTEP);
            *timestep.cast::<f64>() = seconds;
        }
    }

    /// What a family of tasks changes about the bodies, in this order: masses, inertias (three per
    /// body), damping of degrees of freedom, friction (three per geom). Nothing that MuJoCo derived
    /// from them when it compiled the model is computed again.
    pub(crate) fn dynamics_mut(&mut self) -> [&mut [f64]; 4] {
        use layout::model::{BODY_INERTIA, BODY_MASS, DOF_DAMPING, GEOM_FRICTION};
        let (bodies, freedoms, geoms) = (self.nbody(), self.nv(), self.ngeom());
        [
            (BODY_MASS, bodies),
            (BODY_INERTIA, 3 * bodies),
            (DOF_DAMPING, freedoms),
            (GEOM_FRICTION, 3 * geoms),
        ]
        .map(|(offset, length)| -> &mut [f64] {
            // SAFETY: the offset is that of a pointer to `length` numbers, which MuJoCo allocated
            // with the model. The four arrays do not overlap, and nobody else has the model.
            unsafe {
                let pointer = *self.raw.as_ptr().byte_add(offset).cast::<*mut f64>();
                from_raw_parts_mut(pointer, length)
            }
        })
    }

    /// The shape of each geom.
    pub(crate) fn geom_types(&self) -> &[i32] {
        self.array(layout::model::GEOM_TYPE, self.ngeom())
    }

    /// The body of each geom.
    pub(crate) fn geom_bodies(&self) -> &[i32] {
        self.array(layout::model::GEOM_BODYID, self.ngeom())
    }

    /// The size of each geom.
    pub(crate) fn geom_sizes(&self) -> &[[f64; 3]] {
        self.array(layout::model::GEOM_SIZE, self.ngeom())
    }

    /// The colour of each geom.
    pub(crate) fn geom_colours(&self) -> &[[f32; 4]] {
        self.array(layout::model::GEOM_RGBA, self.ngeom())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: it was made by MuJoCo, and no simulation of it is left.
        let _ = guarded(|| unsafe { (self.library.functions.delete_model)(self.raw.as_ptr()) });
    }
}

/// Compiles a model; the error is MuJoCo's reason.
///
/// # Safety
/// `vfs` is null or an initialised `mjVFS`.
unsafe fn load(
    functions: &Functions,
    file: &CStr,
    vfs: *const Vfs,
) -> Result<NonNull<RawModel>, String> {
    let mut error = [0 as c_char; 1024];
    let size = error.len() as c_int;
    // SAFETY: MuJoCo writes a string of at most `size` bytes.
    let (raw, error) = unsafe {
        let raw = (functions.load_xml)(file.as_ptr(), vfs, error.as_mut_ptr(), size);
        (raw, CStr::from_ptr(error.as_ptr()).to_string_lossy())
    };
    NonNull::new(raw).ok_or_else(|| error.lines().collect::<Vec<_>>().join("; "))
}

/// An array that a structure points to.
///
/// # Safety
/// `offset` is that of a pointer to at least `length` values, or to nothing if `length` is 0, which
/// nobody changes during `'a`.
unsafe fn array<'a, T>(structure: NonNull<c_void>, offset: usize, length: usize) -> &'a [T] {
    if length == 0 {
        return &[];
    }
    // SAFETY: as above.
    unsafe {
        let pointer = *structure.as_ptr().byte_add(offset).cast::<*const T>();
        from_raw_parts(pointer, length)
    }
}

/// The state of a simulation, and what MuJoCo computed from it.
///
/// [`step`](Simulation::step) computes forces and positions of bodies from the state and then moves
/// the state on. So `xpos`, `cfrc_ext` and others belong to the state before the last step, as they do
/// in MuJoCo.
pub struct Simulation {
    model: Arc<Model>,
    raw: NonNull<RawData>,
    /// Numbers of a whole state.
    state_size: usize,
    /// Why it must not be used any more.
    broken: Option<String>,
}

// SAFETY: nothing of it belongs to a thread.
unsafe impl Send for Simulation {}
// SAFETY: through `&self` it is only read.
unsafe impl Sync for Simulation {}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut simulation = f.debug_struct("Simulation");
        simulation.field("qpos", &self.qpos());
        simulation
            .field("qvel", &self.qvel())
            .finish_non_exhaustive()
    }
}

impl Simulation {
    /// A simulation at the model's initial state.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn new(model: &Arc<Model>) -> Result<Self, MujocoError> {
        let make = model.library.functions.make_data;
        // SAFETY: the model is one.
        let raw = guarded(|| unsafe { make(model.raw.as_ptr()) })?;
        let raw = NonNull::new(raw);
        let raw = raw.ok_or_else(|| MujocoError::Stopped("there is not enough memory".into()))?;
        let mut simulation = Self {
            model: Arc::clone(model),
            raw,
            state_size: model.state_size(layout::STATE_INTEGRATION)?,
            broken: None,
        };
        simulation.check()?;
        Ok(simulation)
    }

    /// Compares what is read from the structure with what MuJoCo says.
    fn check(&mut self) -> Result<(), MujocoError> {
        let parts = layout::STATE_TIME | layout::STATE_QPOS | layout::STATE_QVEL;
        let mut state = vec![0.0; 1 + self.model.nq() + self.model.nv()];
        self.get(parts, &mut state)?;
        let read = [&[self.time()], self.qpos(), self.qvel()].concat();
        if state != read {
            return Err(MujocoError::Layout(self.model.library.path.clone()));
        }
        Ok(())
    }

    /// Its model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Calls a function that changes the data.
    fn call(
        &mut self,
        function: unsafe extern "C-unwind" fn(*const RawModel, *mut RawData),
    ) -> Result<(), MujocoError> {
        self.change(|model, data| {
            // SAFETY: they are a model and data made for it.
            unsafe { function(model, data) }
        })
    }

    fn change(
        &mut self,
        change: impl FnOnce(*const RawModel, *mut RawData),
    ) -> Result<(), MujocoError> {
        if let Some(reason) = &self.broken {
            return Err(MujocoError::Stopped(reason.clone()));
        }
        let result = guarded(|| change(self.model.raw.as_ptr(), self.raw.as_ptr()));
        if let Err(MujocoError::Stopped(reason)) = &result {
            self.broken = Some(reason.clone());
        }
        result
    }

    /// Back to the model's initial state.
    pub fn reset(&mut self) -> Result<(), MujocoError> {
        self.call(self.model.library.functions.reset_data)
    }

    /// Computes everything that follows from the state, without moving it on.
    pub fn forward(&mut self) -> Result<(), MujocoError> {
        self.call(self.model.library.functions.forward)
    }

    /// Moves the state on by `count` steps.
    ///
    /// # Errors
    /// When it is or becomes unstable: MuJoCo finds NaN or a huge number.
    pub fn step(&mut self, count: usize) -> Result<(), MujocoError> {
        let step = self.model.library.functions.step;
        self.change(|model, data| {
            for _ in 0..count {
                // SAFETY: they are a model and data made for it.
                unsafe { step(model, data) }
            }
        })?;
        self.check_warnings()
    }

    /// MuJoCo counts bad numbers and resets the simulation. For a task that would be a jump back
    /// in the middle of an episode.
    fn check_warnings(&self) -> Result<(), MujocoError> {
        // SAFETY: the offset is that of an array of `mjWarningStat`, two ints each, of which there are
        // more than the kinds looked up here.
        let warning = |kind: i32| unsafe {
            let all = self.raw.as_ptr().byte_add(layout::data::WARNING);
            *all.cast::<[c_int; 2]>().add(kind as usize)
        };
        for (kind, what) in [
            (layout::WARN_BADQPOS, "qpos"),
            (layout::WARN_BADQVEL, "qvel"),
            (layout::WARN_BADQACC, "qacc"),
            (layout::WARN_BADCTRL, "ctrl"),
        ] {
            let [place, number] = warning(kind);
            if number > 0 {
                return Err(MujocoError::Unstable { what, place });
            }
        }
        Ok(())
    }

    /// Computes the positions of bodies, geoms and sites from the state.
    pub fn kinematics(&mut self) -> Result<(), MujocoError> {
        self.call(self.model.library.functions.kinematics)
    }

    /// Computes the forces on bodies from outside, [`cfrc_ext`](Simulation::cfrc_ext).
    pub fn contact_forces(&mut self) -> Result<(), MujocoError> {
        self.call(self.model.library.functions.rne_post_constraint)
    }

    /// Everything that the next steps depend on.
    pub fn state(&self) -> Result<Vec<f64>, MujocoError> {
        let mut state = vec![0.0; self.state_size];
        self.get(layout::STATE_INTEGRATION, &mut state)?;
        Ok(state)
    }

    fn get(&self, parts: i32, state: &mut [f64]) -> Result<(), MujocoError> {
        let get = self.model.library.functions.get_state;
        // SAFETY: `state` has as many numbers as these parts of a state.
        guarded(|| unsafe {
            let (model, data) = (self.model.raw.as_ptr(), self.raw.as_ptr());
            get(model, data, state.as_mut_ptr(), parts);
        })
    }

    /// Continues from a [`state`](Simulation::state) of the same model. What MuJoCo computes from it
    /// is out of date until the next step.
    ///
    /// # Errors
    /// When it has another length.
    pub fn set_state(&mut self, state: &[f64]) -> Result<(), MujocoError> {
        if state.len() != self.state_size {
            return Err(MujocoError::State {
                found: state.len(),
                wanted: self.state_size,
            });
        }
        // Forgets warnings, too.
        self.reset()?;
        let set = self.model.library.functions.set_state;
        self.change(|model, data| {
            // SAFETY: `state` has as many numbers as a whole state.
            unsafe { set(model, data, state.as_ptr(), layout::STATE_INTEGRATION) }
        })
    }

    /// An array that the structure points to.
    fn array<T>(&self, offset: usize, length: usize) -> &[T] {
        // SAFETY: the offset is that of a pointer to `length` numbers, which MuJoCo allocated with the
        // data and frees with them. They change through `&mut self` only.
        unsafe { array(self.raw, offset, length) }
    }

    fn array_mut(&mut self, offset: usize, length: usize) -> &mut [f64] {
        if length == 0 {
            return &mut [];
        }
        // SAFETY: as in `array`; the arrays that this is called for are inputs of MuJoCo, which may
        // have any value.
        unsafe {
            let pointer = *self.raw.as_ptr().byte_add(offset).cast::<*mut f64>();
            from_raw_parts_mut(pointer, length)
        }
    }

    /// Seconds since the start.
    pub fn time(&self) -> f64 {
        // SAFETY: the offset is that of an `mjtNum`, a `double`.
        unsafe { *self.raw.as_ptr().byte_add(layout::data::TIME).cast::<f64>() }
    }

    /// The positions of joints.
    pub fn qpos(&self) -> &[f64] {
        self.array(layout::data::QPOS, self.model.nq())
    }

    /// The same, to be changed.
    pub fn qpos_mut(&mut self) -> &mut [f64] {
        self.array_mut(layout::data::QPOS, self.model.nq())
    }

    /// The velocities of joints.
    pub fn qvel(&self) -> &[f64] {
        self.array(layout::data::QVEL, self.model.nv())
    }

    /// The same, to be changed.
    pub fn qvel_mut(&mut self) -> &mut [f64] {
        self.array_mut(layout::data::QVEL, self.model.nv())
    }

    /// The controls.
    pub fn ctrl(&self) -> &[f64] {
        self.array(layout::data::CTRL, self.model.nu())
    }

    /// The same, to be changed.
    pub fn ctrl_mut(&mut self) -> &mut [f64] {
        self.array_mut(layout::data::CTRL, self.model.nu())
    }

    /// The position of each body.
    pub fn xpos(&self) -> &[[f64; 3]] {
        self.array(layout::data::XPOS, self.model.nbody())
    }

    /// The centre of mass of each body.
    pub fn xipos(&self) -> &[[f64; 3]] {
        self.array(layout::data::XIPOS, self.model.nbody())
    }

    /// The position of each site.
    pub fn site_xpos(&self) -> &[[f64; 3]] {
        self.array(layout::data::SITE_XPOS, self.model.nsite())
    }

    /// The inertia and mass of each body, about the centre of mass of its tree.
    pub fn cinert(&self) -> &[[f64; 10]] {
        self.array(layout::data::CINERT, self.model.nbody())
    }

    /// The velocity of each body, about the centre of mass of its tree.
    pub fn cvel(&self) -> &[[f64; 6]] {
        self.array(layout::data::CVEL, self.model.nbody())
    }

    /// The force of actuators on each degree of freedom.
    pub fn qfrc_actuator(&self) -> &[f64] {
        self.array(layout::data::QFRC_ACTUATOR, self.model.nv())
    }

    /// The force of constraints on each degree of freedom.
    pub fn qfrc_constraint(&self) -> &[f64] {
        self.array(layout::data::QFRC_CONSTRAINT, self.model.nv())
    }

    /// The force from outside on each body, as of the last
    /// [`contact_forces`](Simulation::contact_forces).
    pub fn cfrc_ext(&self) -> &[[f64; 6]] {
        self.array(layout::data::CFRC_EXT, self.model.nbody())
    }

    /// The position of each geom.
    pub(crate) fn geom_xpos(&self) -> &[[f64; 3]] {
        self.array(layout::data::GEOM_XPOS, self.model.ngeom())
    }

    /// The orientation of each geom: a matrix in row-major order.
    pub(crate) fn geom_xmat(&self) -> &[[f64; 9]] {
        self.array(layout::data::GEOM_XMAT, self.model.ngeom())
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        // A stack that is not in order would be another error: its memory is given up.
        if self.broken.is_some() {
            return;
        }
        let delete = self.model.library.functions.delete_data;
        // SAFETY: it was made by MuJoCo, and nothing else holds it.
        let _ = guarded(|| unsafe { delete(self.raw.as_ptr()) });
    }
}
