//! The state of a learner, and how it is saved.

use std::sync::Arc;

use starling_envs::{Rng, stream};
use starling_nets::{Descent, Device, Layout, OptimizerConfig, Params};
use starling_tree::{Array, DType};

use crate::{LearnError, Saved};

/// Weights, what moves them, and the learner's random stream.
pub(crate) struct Trained {
    pub(crate) descent: Descent,
    pub(crate) rng: Rng,
}

impl Trained {
    /// As a run with this seed begins. Gradients are clipped to `clip_norm`.
    pub(crate) fn new(
        layout: &Arc<Layout>,
        config: OptimizerConfig,
        clip_norm: Option<f64>,
        seed: u64,
        device: Device,
    ) -> Self {
        let mut rng = stream(seed, "learner", 0);
        let params = Params::init(layout, &mut rng, device);
        Self {
            descent: Descent::new(params, config, clip_norm),
            rng,
        }
    }

    pub(crate) fn params(&self) -> &Params {
        self.descent.params()
    }

    /// Everything that is needed to continue exactly.
    pub(crate) fn save(&self) -> Saved {
        let mut saved = Saved::new();
        save_descent(&mut saved, "", &self.descent);
        save_rng(&mut saved, &self.rng);
        saved
    }

    /// Continues from what was saved.
    pub(crate) fn load(&mut self, saved: &Saved) -> Result<(), LearnError> {
        load_descent(saved, "", &self.descent)?;
        self.rng = load_rng(saved)?;
        Ok(())
    }
}

/// Saves weights and optimiser. A learner with several networks gives each a prefix (`actor.`).
pub(crate) fn save_descent(saved: &mut Saved, prefix: &str, descent: &Descent) {
    save_params(saved, &format!("{prefix}params"), descent.params());
    for (name, array) in descent.optimizer().state() {
        saved.insert(format!("{prefix}optimizer.{name}"), array);
    }
}

/// Continues from what [`save_descent`] saved.
pub(crate) fn load_descent(
    saved: &Saved,
    prefix: &str,
    descent: &Descent,
) -> Result<(), LearnError> {
    load_params(saved, &format!("{prefix}params"), descent.params())?;
    let state = |name: &str| saved.get(&format!("{prefix}optimizer.{name}")).cloned();
    descent.optimizer().load(state)?;
    descent.loaded();
    Ok(())
}

/// [`Trained`] weights, and a target network that follows them.
pub(crate) struct Followed {
    pub(crate) online: Trained,
    pub(crate) target: Params,
    updates: u64,
}

impl Followed {
    /// As a run with this seed begins.
    pub(crate) fn new(
        layout: &Arc<Layout>,
        config: OptimizerConfig,
        clip_norm: Option<f64>,
        seed: u64,
        device: Device,
    ) -> Self {
        let online = Trained::new(layout, config, clip_norm, seed, device);
        let target = Params::zeros(layout, device);
        target.copy_from(online.params());
        Self {
            online,
            target,
            updates: 0,
        }
    }

    /// Counts an update; after every `every` of them the target goes the share `tau` of the way.
    pub(crate) fn updated(&mut self, every: u64, tau: f64) {
        self.updates += 1;
        if self.updates.is_multiple_of(every) {
            self.target.blend(self.online.params(), tau);
        }
    }

    /// Everything that is needed to continue exactly.
    pub(crate) fn save(&self) -> Saved {
        let mut saved = self.online.save();
        save_params(&mut saved, "target", &self.target);
        save_count(&mut saved, "updates", self.updates);
        saved
    }

    /// Continues from what was saved.
    pub(crate) fn load(&mut self, saved: &Saved) -> Result<(), LearnError> {
        self.online.load(saved)?;
        load_params(saved, "target", &self.target)?;
        self.updates = load_count(saved, "updates")?;
        Ok(())
    }
}

pub(crate) fn save_params(saved: &mut Saved, set: &str, params: &Params) {
    for (name, array) in params.named() {
        saved.insert(format!("{set}.{name}"), array);
    }
}

pub(crate) fn load_params(saved: &Saved, set: &str, params: &Params) -> Result<(), LearnError> {
    Ok(params.load_named(|name| saved.get(&format!("{set}.{name}")).cloned())?)
}

pub(crate) fn save_rng(saved: &mut Saved, rng: &Rng) {
    let bytes = postcard::to_allocvec(rng);
    debug_assert!(bytes.is_ok(), "a generator is four numbers");
    // An empty state is refused when it is loaded.
    let bytes = bytes.unwrap_or_default();
    saved.insert("rng".into(), Array::from_slice(&bytes, &[bytes.len()]));
}

pub(crate) fn load_rng(saved: &Saved) -> Result<Rng, LearnError> {
    let bytes = saved.get("rng").filter(|array| array.dtype() == DType::U8);
    let bytes = bytes.ok_or_else(|| missing("rng"))?.bytes();
    postcard::from_bytes(bytes).map_err(|error| LearnError::Saved(error.to_string()))
}

pub(crate) fn save_count(saved: &mut Saved, name: &str, count: u64) {
    saved.insert(name.into(), Array::from_slice(&[count as i64], &[1]));
}

pub(crate) fn load_count(saved: &Saved, name: &str) -> Result<u64, LearnError> {
    let count = saved.get(name).filter(|array| array.dtype() == DType::I64);
    let count = count.and_then(|array| array.as_slice::<i64>().first());
    Ok(*count.ok_or_else(|| missing(name))? as u64)
}

pub(crate) fn missing(name: &str) -> LearnError {
    LearnError::Saved(format!("'{name}' is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_nets::Init;

    /// Every second update the target goes a quarter of the way to the online network: from 4 to
    /// 0 over 3, then 2.25. With τ = 1 it is a copy.
    #[test]
    fn the_target_follows_by_tau() {
        let mut layout = Layout::default();
        layout.add("w", &[1], Init::Constant(4.0));
        let layout = Arc::new(layout);
        let mut nets = Followed::new(&layout, OptimizerConfig::default(), None, 1, Device::Cpu);
        nets.online.params().load_slice(&[0.0]).unwrap();
        let mut seen = Vec::new();
        for _ in 0..4 {
            nets.updated(2, 0.25);
            seen.push(nets.target.to_vec()[0]);
        }
        assert_eq!(seen, [4.0, 3.0, 3.0, 2.25]);
        // How many updates there were is saved: the next is the fifth, which changes nothing.
        let mut copy = Followed::new(&layout, OptimizerConfig::default(), None, 2, Device::Cpu);
        copy.load(&nets.save()).unwrap();
        copy.updated(2, 1.0);
        assert_eq!(copy.target.to_vec(), [2.25]);
        copy.updated(2, 1.0);
        assert_eq!(copy.target.to_vec(), [0.0]);
    }
}
