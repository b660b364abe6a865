//! Calls into `backward.cpp`: the backward pass in parts.

use std::ffi::{c_char, c_int, c_void};

use tch::Tensor;

use super::{Handle, checked, handle};

type Ready = unsafe extern "C" fn(context: *mut c_void, part: c_int);

unsafe extern "C" {
    fn starling_backward_error() -> *const c_char;
    fn starling_parts_new(
        parameters: *const Handle,
        places: *const Handle,
        part_of: *const c_int,
        count: c_int,
    ) -> *mut c_void;
    fn starling_parts_free(parts: *mut c_void);
    fn starling_parts_backward(
        parts: *mut c_void,
        loss: Handle,
        parameters: *const Handle,
        count: c_int,
        ready: Ready,
        context: *mut c_void,
    ) -> c_int;
}

/// Hooks on parameters, by which the parts of their gradient are known as they become ready.
#[derive(Debug)]
pub(crate) struct BackwardParts {
    parts: *mut c_void,
    parameters: Vec<Tensor>,
}

// SAFETY: hooks and tensors belong to no thread.
unsafe impl Send for BackwardParts {}

impl BackwardParts {
    /// Hooks on leaf parameters of the host. The gradient of each is written to its place; parameters
    /// of one part have the same number, from 0.
    pub(crate) fn new(parameters: &[Tensor], places: &[Tensor], part_of: &[usize]) -> Self {
        assert!(parameters.len() == places.len() && places.len() == part_of.len());
        let handles = |tensors: &[Tensor]| tensors.iter().map(handle).collect::<Vec<Handle>>();
        let numbers: Vec<c_int> = part_of.iter().map(|part| *part as c_int).collect();
        // SAFETY: all lists have `count` elements, and the tensors are alive during the call; those
        // that are kept are counted references.
        let parts = unsafe {
            starling_parts_new(
                handles(parameters).as_ptr(),
                handles(places).as_ptr(),
                numbers.as_ptr(),
                numbers.len() as c_int,
            )
        };
        checked(c_int::from(parts.is_null()), starling_backward_error);
        Self {
            parts,
            parameters: parameters.iter().map(Tensor::shallow_clone).collect(),
        }
    }

    /// The gradient of a scalar. `ready` is called with the number of each part, in order, as soon as
    /// it is complete. It must not panic.
    pub(crate) fn run(&mut self, loss: &Tensor, mut ready: &mut dyn FnMut(usize)) {
        unsafe extern "C" fn call(context: *mut c_void, part: c_int) {
            // SAFETY: the context is the reference below, which outlives the backward pass and is used
            // by nobody else during it. On the host, the pass and its hooks run on the calling thread.
            let ready = unsafe { &mut *context.cast::<&mut dyn FnMut(usize)>() };
            ready(part as usize);
        }
        let handles: Vec<Handle> = self.parameters.iter().map(handle).collect();
        let context = std::ptr::from_mut(&mut ready).cast();
        // SAFETY: the parts are alive and used by one thread at a time (`&mut`), as are loss and
        // parameters; the context is read only during the call.
        let code = unsafe {
            starling_parts_backward(
                self.parts,
                handle(loss),
                handles.as_ptr(),
                handles.len() as c_int,
                call,
                context,
            )
        };
        checked(code, starling_backward_error);
    }
}

impl Drop for BackwardParts {
    fn drop(&mut self) {
        // SAFETY: it was made by `starling_parts_new` and is freed once; hooks hold references of
        // their own.
        unsafe { starling_parts_free(self.parts) }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    /// The loss a·b² depends on a and b, not on c. Parts come in order, complete, and twice in two
    /// passes.
    #[test]
    fn parts_come_in_order_and_complete() {
        let scalar = |value: f32| Tensor::from_slice(&[value]).set_requires_grad(true);
        let parameters = [scalar(2.0), scalar(3.0), scalar(4.0)];
        let gradient = Tensor::full([3], 9.0, (Kind::Float, Device::Cpu));
        let places: Vec<Tensor> = (0..3).map(|i| gradient.narrow(0, i, 1)).collect();
        let mut parts = BackwardParts::new(&parameters, &places, &[1, 0, 1]);
        for _ in 0..2 {
            let loss = (&parameters[0] * parameters[1].square()).sum(Kind::Float);
            let mut seen = Vec::new();
            parts.run(&loss, &mut |part| {
                seen.push((part, gradient.double_value(&[1])));
            });
            assert_eq!(seen, [(0, 12.0), (1, 12.0)]);
            let all = Vec::<f32>::try_from(&gradient).unwrap();
            assert_eq!(all, [9.0, 12.0, 0.0]);
        }
    }
}
