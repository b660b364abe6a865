//! Calls into `gloo.cpp`: process groups of c10d with Gloo.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::IntoRawFd as _;
use std::ptr::NonNull;
use std::time::Duration;

use tch::Tensor;

use super::{Handle, handle};

unsafe extern "C" {
    fn starling_gloo_error() -> *const c_char;
    fn starling_store_new(
        host: *const c_char,
        port: u16,
        socket: c_int,
        timeout_ms: i64,
    ) -> *mut c_void;
    fn starling_store_free(store: *mut c_void);
    fn starling_gloo_new(
        store: *mut c_void,
        prefix: *const c_char,
        address: *const c_char,
        rank: c_int,
        size: c_int,
        timeout_ms: i64,
    ) -> *mut c_void;
    fn starling_gloo_free(group: *mut c_void);
    fn starling_gloo_sum(group: *mut c_void, tensor: Handle) -> c_int;
    fn starling_gloo_broadcast(group: *mut c_void, tensor: Handle, root: c_int) -> c_int;
}

/// The message of this thread's failed call.
fn failure() -> String {
    // SAFETY: the function returns the terminated message that the failed call left for this thread.
    let message = unsafe { CStr::from_ptr(starling_gloo_error()) };
    let message = message.to_string_lossy();
    // The other lines are the location in libtorch's sources.
    let first = message.lines().next().unwrap_or_default();
    first.trim().to_owned()
}

fn terminated(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("{text:?} has a zero in it"))
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1)
}

/// The rendezvous store of groups.
#[derive(Debug)]
pub(crate) struct Store(NonNull<c_void>);

// SAFETY: c10d's store locks for each of its calls.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Store {
    /// Serves a store at this socket, and is its first client.
    pub(crate) fn serve(listener: TcpListener, timeout: Duration) -> Result<Self, String> {
        let mut at = listener.local_addr().map_err(|error| error.to_string())?;
        if at.ip().is_unspecified() {
            at.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        Self::new(at, listener.into_raw_fd(), timeout)
    }

    /// Connects to a store.
    pub(crate) fn connect(at: SocketAddr, timeout: Duration) -> Result<Self, String> {
        Self::new(at, -1, timeout)
    }

    fn new(at: SocketAddr, socket: c_int, timeout: Duration) -> Result<Self, String> {
        let host = terminated(&at.ip().to_string())?;
        // SAFETY: the text is terminated and outlives the call; the socket, if there is one, was given
        // up by its owner above.
        let store =
            unsafe { starling_store_new(host.as_ptr(), at.port(), socket, millis(timeout)) };
        NonNull::new(store).map(Self).ok_or_else(failure)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: it was made by `starling_store_new`, and this is its only owner; groups hold a
        // reference of their own.
        unsafe { starling_store_free(self.0.as_ptr()) }
    }
}

/// One member of a group.
#[derive(Debug)]
pub(crate) struct Gloo(NonNull<c_void>);

// SAFETY: c10d's process group belongs to no thread, and is used by one at a time (`&mut`).
unsafe impl Send for Gloo {}

impl Gloo {
    /// Waits until all members are there.
    pub(crate) fn new(
        store: &Store,
        prefix: &str,
        address: &str,
        (rank, size): (usize, usize),
        timeout: Duration,
    ) -> Result<Self, String> {
        let (prefix, address) = (terminated(prefix)?, terminated(address)?);
        // SAFETY: the store is alive, and the texts are terminated and outlive the call.
        let group = unsafe {
            starling_gloo_new(
                store.0.as_ptr(),
                prefix.as_ptr(),
                address.as_ptr(),
                rank as c_int,
                size as c_int,
                millis(timeout),
            )
        };
        NonNull::new(group).map(Self).ok_or_else(failure)
    }

    /// Replaces a contiguous tensor of the host by its sum over the group.
    pub(crate) fn sum(&mut self, tensor: &Tensor) -> Result<(), String> {
        // SAFETY: both handles are alive; c10d checks kind, device and layout, and waits until the
        // memory is no longer used.
        let code = unsafe { starling_gloo_sum(self.0.as_ptr(), handle(tensor)) };
        if code == 0 { Ok(()) } else { Err(failure()) }
    }

    /// Replaces a contiguous tensor of the host by that of a member.
    pub(crate) fn broadcast(&mut self, tensor: &Tensor, root: usize) -> Result<(), String> {
        // SAFETY: as in `sum`.
        let code =
            unsafe { starling_gloo_broadcast(self.0.as_ptr(), handle(tensor), root as c_int) };
        if code == 0 { Ok(()) } else { Err(failure()) }
    }
}

impl Drop for Gloo {
    fn drop(&mut self) {
        // SAFETY: it was made by `starling_gloo_new`, and this is its only owner.
        unsafe { starling_gloo_free(self.0.as_ptr()) }
    }
}
