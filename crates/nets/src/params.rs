//! All weights of a network as one flat tensor with named views.

use std::sync::Arc;

use starling_envs::Rng;
use starling_tree::{Array, DType};
use tch::{Device, Kind, Tensor};

use crate::Init;

/// The parameters that a network needs: names, shapes, first values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    entries: Vec<Entry>,
    elements: i64,
    /// Which of them are statistics of batches.
    statistics: Vec<ParamId>,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    name: String,
    shape: Vec<i64>,
    first: First,
}

/// Where first values come from.
#[derive(Clone, Debug, PartialEq)]
enum First {
    Drawn(Init),
    Given(Vec<f32>),
}

/// Names one parameter of a [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamId(usize);

impl Layout {
    /// Asks for one more parameter.
    pub fn add(&mut self, name: impl Into<String>, shape: &[usize], init: Init) -> ParamId {
        self.push(name.into(), shape, First::Drawn(init))
    }

    /// Asks for one more parameter whose first values are given, in row-major order.
    pub(crate) fn add_given(&mut self, name: String, shape: &[usize], values: Vec<f32>) -> ParamId {
        self.push(name, shape, First::Given(values))
    }

    fn push(&mut self, name: String, shape: &[usize], first: First) -> ParamId {
        let shape: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
        self.elements += shape.iter().product::<i64>();
        self.entries.push(Entry { name, shape, first });
        ParamId(self.entries.len() - 1)
    }

    /// Marks a parameter that no gradient changes, but each batch. A group of learners averages it.
    pub(crate) fn is_statistic(&mut self, id: ParamId) {
        self.statistics.push(id);
    }

    /// Numbers in all parameters together.
    pub fn elements(&self) -> usize {
        self.elements as usize
    }
}

/// Values for every parameter of a [`Layout`], on one device.
///
/// They lie in one flat tensor: an optimiser step, a copy to the target network, a hand-over to
/// the actors or an average over learners is one operation whatever the number of layers. That
/// tensor is overwritten, never replaced, so that recorded computations can read it.
#[derive(Debug)]
pub struct Params {
    layout: Arc<Layout>,
    flat: Tensor,
    views: Vec<Tensor>,
}

/// A gradient in [parts](Params::in_parts).
pub(crate) struct GradientParts {
    /// The gradient of each parameter.
    pub(crate) places: Vec<Tensor>,
    /// Which part each parameter belongs to.
    pub(crate) part_of: Vec<usize>,
    /// The parts.
    pub(crate) slices: Vec<Tensor>,
}

/// Weights that do not fit a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the weights do not fit the network: {0}")]
pub struct ShapeMismatch(pub String);

impl Params {
    /// First values, drawn from `rng`.
    pub fn init(layout: &Arc<Layout>, rng: &mut Rng, device: Device) -> Self {
        let params = Self::zeros(layout, device);
        tch::no_grad(|| {
            for (entry, view) in layout.entries.iter().zip(&params.views) {
                let first = match &entry.first {
                    First::Drawn(init) => init.sample(&entry.shape, rng),
                    First::Given(values) => Tensor::from_slice(values).reshape(&entry.shape[..]),
                };
                view.shallow_clone().copy_(&first);
            }
        });
        params
    }

    /// All zeros, to be loaded.
    pub fn zeros(layout: &Arc<Layout>, device: Device) -> Self {
        let flat = Tensor::zeros([layout.elements], (Kind::Float, device));
        let views = views(layout, &flat);
        Self {
            layout: Arc::clone(layout),
            flat,
            views,
        }
    }

    /// The same values with gradients tracked.
    pub fn trainable(self) -> Self {
        let views = self.views.into_iter();
        let views = views.map(|view| view.detach().set_requires_grad(true));
        Self {
            views: views.collect(),
            ..self
        }
    }

    /// One parameter.
    pub fn get(&self, id: ParamId) -> &Tensor {
        &self.views[id.0]
    }

    /// The name of one parameter.
    pub(crate) fn name(&self, id: ParamId) -> &str {
        &self.layout.entries[id.0].name
    }

    /// Those that each batch changes, and no gradient.
    pub(crate) fn statistics(&self) -> impl Iterator<Item = &Tensor> {
        self.layout.statistics.iter().map(|id| self.get(*id))
    }

    /// All parameters as one vector, sharing storage: writing it changes the network.
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// The same parameters, not a copy: a change of one is a change of both.
    pub fn share(&self) -> Self {
        Self {
            layout: Arc::clone(&self.layout),
            flat: self.flat.shallow_clone(),
            views: self.views.iter().map(Tensor::shallow_clone).collect(),
        }
    }

    /// The same parameters, not a copy, without gradients: for losses that depend on them and do
    /// not change them.
    pub fn frozen(&self) -> Self {
        Self {
            layout: Arc::clone(&self.layout),
            flat: self.flat.shallow_clone(),
            views: self.views.iter().map(Tensor::detach).collect(),
        }
    }

    /// Where they are.
    pub fn device(&self) -> Device {
        self.flat.device()
    }

    /// The gradient of a scalar with respect to all parameters, as one vector.
    pub fn gradient(&self, loss: &Tensor) -> Tensor {
        let gradient = self.flat.zeros_like();
        self.gradient_into(loss, &gradient);
        gradient
    }

    /// Overwrites a vector with the [`gradient`](Params::gradient) of a scalar.
    pub fn gradient_into(&self, loss: &Tensor, gradient: &Tensor) {
        let gradients = Tensor::run_backward(&[loss], &self.views, false, false);
        let gradients = gradients.into_iter().zip(&self.views);
        let parts: Vec<Tensor> = gradients
            .map(|(gradient, view)| {
                if gradient.defined() {
                    gradient.reshape([-1])
                } else {
                    // The loss does not depend on this parameter.
                    Tensor::zeros([view.numel() as i64], (Kind::Float, view.device()))
                }
            })
            .collect();
        let _ = tch::no_grad(|| Tensor::cat_out(gradient, &parts, 0));
    }

    /// A gradient in parts, from the last parameters to the first, which is about the order in which a
    /// backward pass computes them. A part has at least `numbers` numbers, except the last.
    pub(crate) fn in_parts(&self, gradient: &Tensor, numbers: i64) -> GradientParts {
        let mut part_of = vec![0; self.views.len()];
        let (mut slices, mut end) = (Vec::new(), self.layout.elements);
        let mut start = end;
        for (index, view) in self.views.iter().enumerate().rev() {
            part_of[index] = slices.len();
            start -= view.numel() as i64;
            if end - start >= numbers || index == 0 {
                slices.push(gradient.narrow(0, start, end - start));
                end = start;
            }
        }
        GradientParts {
            places: views(&self.layout, gradient),
            part_of,
            slices,
        }
    }

    /// Takes over all values of another network of the same layout.
    pub fn copy_from(&self, other: &Params) {
        tch::no_grad(|| self.flat.shallow_clone().copy_(&other.flat));
    }

    /// Moves towards another network: `self += tau · (other − self)`.
    pub fn blend(&self, other: &Params, tau: f64) {
        tch::no_grad(|| {
            let _ = self.flat.shallow_clone().lerp_(&other.flat, tau);
        });
    }

    /// The parameters one by one, in the order of the layout.
    pub(crate) fn views(&self) -> &[Tensor] {
        &self.views
    }

    /// All values, copied to the host.
    pub fn to_vec(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.layout.elements()];
        let host = self.flat.to_device(Device::Cpu);
        host.copy_data(&mut values, self.layout.elements());
        values
    }

    /// Takes over all values from the host.
    pub fn load_slice(&self, values: &[f32]) -> Result<(), ShapeMismatch> {
        if values.len() != self.layout.elements() {
            return Err(ShapeMismatch(format!(
                "{} numbers were given, {} are needed",
                values.len(),
                self.layout.elements()
            )));
        }
        tch::no_grad(|| self.flat.shallow_clone().copy_(&Tensor::from_slice(values)));
        Ok(())
    }

    /// Every parameter by name, copied to the host.
    pub fn named(&self) -> Vec<(String, Array)> {
        let entries = self.layout.entries.iter().zip(&self.views);
        entries
            .map(|(entry, view)| (entry.name.clone(), crate::array_of(view)))
            .collect()
    }

    /// Takes over every parameter by name; names and shapes must be those of the layout.
    pub fn load_named(&self, get: impl Fn(&str) -> Option<Array>) -> Result<(), ShapeMismatch> {
        for (entry, view) in self.layout.entries.iter().zip(&self.views) {
            let name = &entry.name;
            let array = get(name).ok_or_else(|| ShapeMismatch(format!("'{name}' is missing")))?;
            let shape: Vec<i64> = array.shape().iter().map(|&n| n as i64).collect();
            if shape != entry.shape || array.dtype() != DType::F32 {
                return Err(ShapeMismatch(format!(
                    "'{name}' is {:?} {shape:?}, but {:?} of floats is needed",
                    array.dtype(),
                    entry.shape
                )));
            }
            let tensor = crate::tensor_of(&array, Device::Cpu);
            tch::no_grad(|| view.shallow_clone().copy_(&tensor));
        }
        Ok(())
    }
}

fn views(layout: &Layout, flat: &Tensor) -> Vec<Tensor> {
    let mut start = 0;
    let entries = layout.entries.iter();
    entries
        .map(|entry| {
            let length = entry.shape.iter().product();
            let view = flat.narrow(0, start, length).view(&entry.shape[..]);
            start += length;
            view
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;

    fn layout() -> Arc<Layout> {
        let mut layout = Layout::default();
        layout.add("w", &[2, 3], Init::FanIn { fan_in: 3 });
        layout.add("unused", &[2], Init::Constant(0.5));
        Arc::new(layout)
    }

    #[test]
    fn gradient_covers_all_parameters_in_order() {
        let params = Params::init(&layout(), &mut stream(1, "init", 0), Device::Cpu).trainable();
        let loss = (params.get(ParamId(0)) * 3.0).sum(Kind::Float);
        let gradient = Vec::<f32>::try_from(params.gradient(&loss)).unwrap();
        assert_eq!(gradient, [3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 0.0, 0.0]);
    }

    #[test]
    fn writing_the_flat_vector_changes_the_views() {
        let params = Params::init(&layout(), &mut stream(1, "init", 0), Device::Cpu).trainable();
        let _ = tch::no_grad(|| params.flat().shallow_clone().fill_(7.0));
        assert_eq!(params.get(ParamId(1)).double_value(&[1]), 7.0);
        assert!(params.get(ParamId(1)).requires_grad());
    }

    #[test]
    fn frozen_parameters_are_the_same_without_gradients() {
        let params = Params::init(&layout(), &mut stream(1, "init", 0), Device::Cpu).trainable();
        let frozen = params.frozen();
        let _ = tch::no_grad(|| params.flat().shallow_clone().fill_(7.0));
        assert_eq!(frozen.get(ParamId(1)).double_value(&[1]), 7.0);
        assert!(!frozen.get(ParamId(1)).requires_grad());
        assert!(params.get(ParamId(1)).requires_grad());
    }

    #[test]
    fn values_survive_a_round_trip_by_name() {
        let first = Params::init(&layout(), &mut stream(1, "init", 0), Device::Cpu);
        let second = Params::zeros(&layout(), Device::Cpu);
        let named = first.named();
        let get = |name: &str| {
            named
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, a)| a.clone())
        };
        second.load_named(get).unwrap();
        assert_eq!(first.to_vec(), second.to_vec());
        let error = second.load_named(|_| None).unwrap_err();
        assert!(error.to_string().contains("'w' is missing"));
    }
}
