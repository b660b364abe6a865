//! The observations that a policy acts on, for a group of environments, at fixed addresses on its
//! device.

use starling_envs::Rollout;
use starling_nets::{Device, Staging, Tensor};
use starling_tree::{Array, Spec, Tree};

use crate::Part;

/// The observations that a forward pass reads. Their addresses do not change, so that the pass can
/// be recorded, and of stacked frames only the new ones travel to a GPU.
#[derive(Debug)]
pub(crate) struct Shown {
    envs: usize,
    obs: Tree<Staging>,
    /// New frames of stacked observations.
    frames: Option<Staging>,
    frame_stack: Option<usize>,
    /// The observations are those of the row to come: it was shown when the last rollout ended.
    ready: bool,
    /// Rows were left out: the frames on the device are not those before the next.
    skipped: bool,
    /// Whether the rows of a rollout are kept on a GPU.
    keep: bool,
    /// Rows of the rollout under way, `[T + 1, B, ..]`, as far as they were shown.
    rows: Option<Tree<Tensor>>,
}

impl Shown {
    /// Room for the observations of `envs` environments, such as those of the rollout, which are
    /// stacks of this many frames, if any.
    pub(crate) fn new(
        rollout: &Rollout,
        envs: usize,
        frame_stack: Option<usize>,
        device: Device,
    ) -> Self {
        let item = |array: &Array| Spec::new(array.dtype(), &array.shape()[2..]);
        let staging = |spec: &Spec| Staging::new(envs, spec, device);
        Self {
            envs,
            obs: rollout.obs.map(|array| staging(&item(array))),
            frames: match (&rollout.obs, device) {
                (Tree::Leaf(obs), Device::Cuda(_)) if obs.shape().len() > 3 => {
                    let spec = Spec::new(obs.dtype(), &obs.shape()[3..]);
                    Some(staging(&spec))
                }
                _ => None,
            },
            frame_stack,
            ready: false,
            skipped: false,
            keep: false,
            rows: None,
        }
    }

    /// Keeps the rows of each rollout, where the device is a GPU.
    pub(crate) fn keeping_rows(self) -> Self {
        Self { keep: true, ..self }
    }

    /// The rows of the rollout under way as far as they were shown, `[T + 1, B, ..]`, where they
    /// are kept. The next rollout overwrites them, unless they are taken.
    pub(crate) fn rows(&mut self) -> &mut Option<Tree<Tensor>> {
        &mut self.rows
    }

    /// For how many environments there is room.
    pub(crate) fn envs(&self) -> usize {
        self.envs
    }

    /// The observations on the device, always the same tensors.
    pub(crate) fn tensors(&self) -> Tree<Tensor> {
        self.obs.map(|obs| obs.tensor().shallow_clone())
    }

    /// Copies the observations of row `t` of the parts of the group to the device. Rows come in
    /// order; the last row of a rollout is the first of the next.
    pub(crate) fn show(&mut self, t: usize, parts: &[Part<'_>]) {
        if t > 0 || !self.ready {
            match (self.frame_stack, &self.frames) {
                (Some(stack), Some(_)) if t > 0 && !self.skipped => {
                    self.show_frames(t, parts, stack);
                }
                _ => self.show_whole(t, parts),
            }
        }
        self.skipped = false;
        self.ready = parts.first().is_some_and(|part| t == part.rollout.steps());
        if let (true, Some(part)) = (self.keep, parts.first()) {
            self.keep_row(t, part.rollout.steps() as i64 + 1);
        }
    }

    /// Leaves a row out that nobody looks at. Nothing goes to the device: the memory that feeds it
    /// must not be written again before a pass has been waited for.
    pub(crate) fn skip(&mut self) {
        (self.ready, self.skipped) = (false, true);
    }

    fn keep_row(&mut self, t: usize, rows: i64) {
        let obs = self.tensors();
        let on_gpu = |(_, obs): &(String, &Tensor)| obs.device() != Device::Cpu;
        if !obs.leaves().iter().all(on_gpu) {
            return;
        }
        let kept = self.rows.get_or_insert_with(|| {
            obs.map(|obs| {
                let shape = [&[rows], obs.size().as_slice()].concat();
                Tensor::empty(&shape, (obs.kind(), obs.device()))
            })
        });
        for ((_, kept), (_, obs)) in kept.leaves().into_iter().zip(obs.leaves()) {
            kept.select(0, t as i64).copy_(obs);
        }
    }

    fn show_whole(&self, t: usize, parts: &[Part<'_>]) {
        let mut first = 0;
        for part in parts {
            let columns = part.rollout.obs.leaves();
            for ((_, staging), (_, column)) in self.obs.leaves().into_iter().zip(columns) {
                staging.write(first, column.at(&[t]).bytes);
            }
            first += part.acting.rngs.len();
        }
        for (_, staging) in self.obs.leaves() {
            staging.upload();
        }
    }

    /// Moves the stacks on the device by one frame each. Where an episode began, the whole
    /// stack is new.
    fn show_frames(&self, t: usize, parts: &[Part<'_>], stack: usize) {
        let (Tree::Leaf(obs), Some(frames)) = (&self.obs, &self.frames) else {
            return self.show_whole(t, parts);
        };
        let (mut first, mut begun, mut whole) = (0, Vec::new(), Vec::new());
        for part in parts {
            let (rollout, envs) = (&*part.rollout, part.acting.rngs.len());
            let Tree::Leaf(column) = &rollout.obs else {
                return;
            };
            let row = column.at(&[t]).bytes;
            let item = row.len() / envs;
            let ended = rollout.terminated.at(&[t - 1]).bytes.iter();
            let ended = ended.zip(rollout.truncated.at(&[t - 1]).bytes);
            for (b, (terminated, truncated)) in ended.enumerate() {
                let observation = &row[b * item..(b + 1) * item];
                frames.write(first + b, &observation[item - item / stack..]);
                if *terminated != 0 || *truncated != 0 {
                    begun.push((first + b) as i64);
                    whole.extend_from_slice(observation);
                }
            }
            first += envs;
        }
        frames.upload();
        let mut stacks = obs.tensor().shallow_clone();
        let kept = stacks.narrow(1, 1, stack as i64 - 1);
        let moved = Tensor::cat(&[kept, frames.tensor().unsqueeze(1)], 1);
        stacks.copy_(&moved);
        if !begun.is_empty() {
            let mut shape = stacks.size();
            shape[0] = begun.len() as i64;
            let device = stacks.device();
            let whole = Tensor::from_data_size(&whole, &shape, stacks.kind()).to_device(device);
            let begun = Tensor::from_slice(&begun).to_device(device);
            let _ = stacks.index_copy_(0, &begun, &whole);
        }
    }
}
