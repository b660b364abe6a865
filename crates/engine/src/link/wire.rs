//! Parcels and publications as bytes, for links that leave the process.
//!
//! ```text
//! frame    = "STLK" | protocol u16 | kind u8 | 0u8 | length u64 | CRC-32C u32 | body
//! parcel   = head length u32 | head (postcard) | columns length u64 | columns (zstd)
//! weights  = version u64 | env_steps u64 | values f32 …
//! changes  = base u64 | version u64 | env_steps u64 | values XOR those of the base (zstd)
//! ```
//!
//! Observations come first, one environment after the other. Where an observation is a stack of
//! frames that continues the one before, only its newest frame is sent (`wire/stack.rs`).
//!
//! All numbers are little-endian. A receiver says beforehand what it expects ([`ParcelFormat`],
//! [`PublicationFormat`]): sizes follow from that, not from what arrives, and are compared before
//! memory is taken. Nothing that is received names a type, a file or code.

mod changes;
mod stack;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use starling_envs::{Episode, Rollout, Space};
use starling_nets::Snapshot;
use starling_tree::{Array, Spec, Tree};

pub use changes::changes_between;

use super::{Control, LeaseId, Parcel, Place, Places, Publication, Weights};
use crate::collect::rollout_steps;
use crate::run::config::spaces_of;
use crate::{EngineError, RunConfig};

/// Changes with every change of the bytes.
pub const PROTOCOL: u16 = 3;

/// Bytes before the body of a frame.
pub const HEADER_BYTES: usize = 20;

const MAGIC: [u8; 4] = *b"STLK";
/// The byte of a header that has the kind of its frame.
const KIND_AT: usize = 6;
const PARCEL: u8 = 1;
const PUBLICATION: u8 = 2;
const CHANGES: u8 = 3;

/// Higher ones take more time for few bytes.
const ZSTD_LEVEL: i32 = 1;

/// Why bytes cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not a frame of Starling.
    #[error("the bytes are not a message of Starling")]
    Foreign,
    /// The other side speaks another version.
    #[error(
        "the other side speaks protocol {theirs}, this one {PROTOCOL}: use the same version of Starling on both sides"
    )]
    Protocol {
        /// The other side's.
        theirs: u16,
    },
    /// More than can be expected.
    #[error("a message of {bytes} bytes is announced, more than the {most} that are possible")]
    TooLong {
        /// What was announced.
        bytes: u64,
        /// What is possible.
        most: u64,
    },
    /// The bytes are not those that were sent.
    #[error("the message is damaged or cut off")]
    Damaged,
    /// Whole, but not what is expected.
    #[error("the message does not fit this run: {0}")]
    Unexpected(String),
}

/// What the parcels of a run look like.
#[derive(Clone, Debug)]
pub struct ParcelFormat {
    /// Steps of a rollout.
    pub steps: usize,
    /// Observations.
    pub observation: Space,
    /// Actions.
    pub action: Space,
    /// Number of actions of environments that say which are legal.
    pub legal_actions: Option<usize>,
    /// What the policy records with each action.
    pub records: Tree<Spec>,
    /// What it carries from step to step.
    pub state: Tree<Spec>,
    /// The places of the run.
    pub places: Vec<Place>,
}

/// Memory of parcels of a run that were used, to read others into.
#[derive(Debug, Default)]
pub struct Spares {
    /// Columns before they were compressed, or anything else.
    pub raw: Vec<u8>,
    /// Rollouts, of parcels of the same format.
    pub rollouts: Vec<Rollout>,
}

/// What the publications of a run look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicationFormat {
    /// Number of parameters.
    pub weights: usize,
}

/// What a parcel says of itself before its columns.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    lease: LeaseId,
    number: u64,
    rollouts: Vec<RolloutHead>,
    episodes: Vec<Episode>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct RolloutHead {
    first_env: usize,
    envs: usize,
    version: u64,
    /// Where episodes ended.
    final_at: Vec<(usize, usize)>,
}

/// The length of a frame's body, from its first [`HEADER_BYTES`] bytes. A reader of a stream
/// takes memory only after this, with the format's `most_bytes`.
///
/// # Errors
/// When it is no frame, or one that is longer than `most`.
pub fn body_bytes(header: &[u8; HEADER_BYTES], most: u64) -> Result<usize, WireError> {
    if header[..4] != MAGIC || header[7] != 0 {
        return Err(WireError::Foreign);
    }
    let theirs = u16::from_le_bytes([header[4], header[5]]);
    if theirs != PROTOCOL {
        return Err(WireError::Protocol { theirs });
    }
    let bytes = u64::from_le_bytes(array(&header[8..16]));
    match usize::try_from(bytes) {
        Ok(length) if bytes <= most => Ok(length),
        _ => Err(WireError::TooLong { bytes, most }),
    }
}

/// The rollouts of a parcel as bytes, without the lease and the number that it is sent with.
#[derive(Clone, Debug)]
pub struct Packed {
    rollouts: Vec<RolloutHead>,
    episodes: Vec<Episode>,
    /// Bytes of the columns before they were compressed.
    raw_bytes: u64,
    columns: Vec<u8>,
}

impl Packed {
    /// Packs rollouts, each with the number of its first environment, and the episodes that ended. `raw`
    /// is memory to use, of which the content does not matter.
    ///
    /// # Errors
    /// When they cannot be compressed.
    pub fn new(
        rollouts: &[(usize, Rollout)],
        episodes: &[Episode],
        raw: &mut Vec<u8>,
    ) -> Result<Self, WireError> {
        let heads = rollouts.iter().map(|(first_env, rollout)| RolloutHead {
            first_env: *first_env,
            envs: rollout.envs(),
            version: rollout.version,
            final_at: rollout.final_at.clone(),
        });
        raw.clear();
        for (_, rollout) in rollouts {
            let finals = rollout.final_obs.leaves();
            for ((_, shown), (_, last)) in rollout.obs.leaves().iter().zip(&finals) {
                stack::write(shown, last, &rollout.final_at, raw);
            }
            for array in columns(rollout) {
                raw.extend(array.bytes());
            }
            raw.extend(&rollout.final_legal);
        }
        let columns = zstd::bulk::compress(raw, ZSTD_LEVEL);
        Ok(Self {
            rollouts: heads.collect(),
            episodes: episodes.to_vec(),
            raw_bytes: raw.len() as u64,
            columns: columns.map_err(|error| WireError::Unexpected(error.to_string()))?,
        })
    }

    /// Writes a parcel of a lease as one frame after what is in `out`.
    ///
    /// # Errors
    /// When it has no place in a frame: more than 4 GiB of episodes.
    pub fn write(&self, lease: LeaseId, number: u64, out: &mut Vec<u8>) -> Result<(), WireError> {
        let head = Head {
            lease,
            number,
            rollouts: self.rollouts.clone(),
            episodes: self.episodes.clone(),
        };
        let unexpected = |what: String| WireError::Unexpected(what);
        let head = postcard::to_allocvec(&head).map_err(|error| unexpected(error.to_string()))?;
        let length = u32::try_from(head.len()).map_err(|error| unexpected(error.to_string()))?;
        let begin = begin_frame(PARCEL, out);
        out.extend(length.to_le_bytes());
        out.extend(head);
        out.extend(self.raw_bytes.to_le_bytes());
        out.extend(&self.columns);
        end_frame(begin, out);
        Ok(())
    }
}

/// Writes a parcel as one frame after what is in `out`.
///
/// # Errors
/// When it has no place in a frame: more than 4 GiB of episodes.
pub fn write_parcel(parcel: &Parcel, out: &mut Vec<u8>) -> Result<(), WireError> {
    let packed = Packed::new(&parcel.rollouts, &parcel.episodes, &mut Vec::new())?;
    packed.write(parcel.lease, parcel.number, out)
}

/// Writes a publication as one frame after what is in `out`.
pub fn write_publication(publication: &Publication, out: &mut Vec<u8>) {
    let begin = begin_frame(PUBLICATION, out);
    out.extend(publication.weights.version.to_le_bytes());
    out.extend(publication.control.env_steps.to_le_bytes());
    for value in publication.weights.values.values() {
        out.extend(value.to_le_bytes());
    }
    end_frame(begin, out);
}

impl PublicationFormat {
    /// The longest body of a frame.
    pub fn most_bytes(&self) -> u64 {
        16 + 4 * self.weights as u64
    }

    /// Reads one frame.
    ///
    /// # Errors
    /// When it is not whole, or of another network.
    pub fn read(&self, frame: &[u8]) -> Result<Publication, WireError> {
        self.read_with(frame, |_| None)
    }

    /// Reads one frame, which may have the changes since weights that `held` knows by their version.
    ///
    /// # Errors
    /// When it is not whole, of another network, or of a base that is not known.
    pub fn read_with(
        &self,
        frame: &[u8],
        held: impl Fn(u64) -> Option<Arc<Weights>>,
    ) -> Result<Publication, WireError> {
        if frame.get(KIND_AT) == Some(&CHANGES) {
            return changes::read(self, frame, held);
        }
        let body = read_frame(PUBLICATION, frame, self.most_bytes())?;
        if body.len() as u64 != self.most_bytes() {
            let expected = self.weights;
            let what = format!("these weights are not those of a network of {expected} parameters");
            return Err(WireError::Unexpected(what));
        }
        let (version, rest) = body.split_at(8);
        let (env_steps, values) = rest.split_at(8);
        let values = values.chunks_exact(4);
        let values = values.map(|four| f32::from_le_bytes(array(four)));
        let weights = Weights {
            version: u64::from_le_bytes(array(version)),
            values: Snapshot::from_values(values.collect()),
        };
        Ok(Publication {
            weights: Arc::new(weights),
            control: Control {
                env_steps: u64::from_le_bytes(array(env_steps)),
            },
        })
    }
}

impl ParcelFormat {
    /// Of a run.
    ///
    /// # Errors
    /// When the environment or the algorithm cannot be made.
    pub fn of(config: &RunConfig, places: &Places) -> Result<Self, EngineError> {
        let env = config.env_spec()?.make(&config.env)?;
        let spaces = spaces_of(&*env);
        let algorithm = config.algorithm()?;
        let policy = algorithm.policy(starling_nets::Device::Cpu);
        Ok(Self {
            steps: rollout_steps(&*algorithm),
            observation: spaces.observation,
            action: spaces.action,
            legal_actions: spaces.legal_actions,
            records: policy.records(),
            state: starling_algos::carried_state(&policy.state()),
            places: places.all(),
        })
    }

    /// An empty rollout of a parcel.
    pub fn rollout(&self, envs: usize) -> Rollout {
        Rollout::new(
            self.steps,
            envs,
            &self.observation,
            &self.action,
            self.legal_actions,
            &self.records,
            &self.state,
        )
    }

    /// The longest body of a frame.
    pub fn most_bytes(&self) -> u64 {
        let widest = self.places.iter().map(|place| place.envs).max();
        let envs = widest.unwrap_or(0);
        let steps = envs * self.steps;
        let columns = envs * self.env_bytes() + steps * self.final_bytes();
        // An episode or its end takes no more than this in the head; marks of continued stacks and
        // what zstd adds to bytes that do not compress are in it too.
        const HEAD_PER_STEP: usize = 128;
        (columns + HEAD_PER_STEP * (steps + envs) + 1024) as u64
    }

    /// Reads one frame.
    ///
    /// # Errors
    /// When it is not whole, or not a parcel of this run.
    pub fn read(&self, frame: &[u8]) -> Result<Parcel, WireError> {
        self.read_into(frame, &mut Spares::default())
    }

    /// The same, into memory that was used before.
    ///
    /// # Errors
    /// As [`ParcelFormat::read`].
    pub fn read_into(&self, frame: &[u8], spares: &mut Spares) -> Result<Parcel, WireError> {
        let body = read_frame(PARCEL, frame, self.most_bytes())?;
        let (length, rest) = body.split_at_checked(4).ok_or(WireError::Damaged)?;
        let length = u32::from_le_bytes(array(length)) as usize;
        let (head, rest) = rest.split_at_checked(length).ok_or(WireError::Damaged)?;
        let head: Head = postcard::from_bytes(head).map_err(|_| WireError::Damaged)?;
        self.check(&head)?;
        let (bytes, packed) = rest.split_first_chunk().ok_or(WireError::Damaged)?;
        let Spares {
            raw,
            rollouts: spares,
        } = spares;
        self.unpack(u64::from_le_bytes(*bytes), packed, raw)?;
        let mut left = &raw[..];
        let mut rollouts = Vec::new();
        // The checksum fits, so that columns of another size are those of another run.
        let other = || WireError::Unexpected("its columns are not those of this run".into());
        for rollout in &head.rollouts {
            let same = |spare: &Rollout| spare.envs() == rollout.envs;
            let spare = spares.iter().position(same).map(|at| spares.remove(at));
            let read = self.read_rollout(rollout, spare, &mut left);
            let read = read.map_err(|error| match error {
                WireError::Damaged => other(),
                error => error,
            });
            rollouts.push((rollout.first_env, read?));
        }
        if !left.is_empty() {
            return Err(other());
        }
        Ok(Parcel {
            lease: head.lease,
            number: head.number,
            rollouts,
            episodes: head.episodes,
        })
    }

    /// Columns as they were before they were compressed. No more memory is taken than a parcel of
    /// this run can fill, whatever is announced and whatever comes.
    fn unpack(&self, bytes: u64, packed: &[u8], raw: &mut Vec<u8>) -> Result<(), WireError> {
        let most = self.most_bytes();
        let length = match usize::try_from(bytes) {
            Ok(length) if bytes <= most => length,
            _ => return Err(WireError::TooLong { bytes, most }),
        };
        raw.clear();
        raw.reserve_exact(length);
        let zstd = zstd::bulk::Decompressor::new();
        let read = zstd.and_then(|mut zstd| zstd.decompress_to_buffer(packed, raw));
        match read {
            Ok(read) if read == length => Ok(()),
            _ => Err(WireError::Damaged),
        }
    }

    /// Whether a head describes a parcel of this run.
    fn check(&self, head: &Head) -> Result<(), WireError> {
        let unexpected = |what: String| Err(WireError::Unexpected(what));
        let number = head.lease.place;
        let Some(place) = self.places.get(number) else {
            return unexpected(format!("there is no place {number}"));
        };
        let (end, mut next) = (place.first_env + place.envs, place.first_env);
        for rollout in &head.rollouts {
            let (envs, finals) = (rollout.envs, rollout.final_at.len());
            if rollout.first_env != next || envs == 0 || envs > end - next {
                return unexpected(format!("its environments are not those of place {number}"));
            }
            next += envs;
            let ends = &rollout.final_at;
            if finals > envs * self.steps || ends.iter().any(|&(t, b)| t >= self.steps || b >= envs)
            {
                return unexpected("episodes end outside of the rollout".into());
            }
        }
        if next != end {
            return unexpected(format!("its environments are not those of place {number}"));
        }
        // One episode may end with every step, and none that is not of the place.
        let strange = head
            .episodes
            .iter()
            .any(|episode| episode.env >= place.envs);
        if head.episodes.len() > place.envs * self.steps || strange {
            return unexpected("its episodes are not those of its place".into());
        }
        Ok(())
    }

    /// Reads the columns that a checked head describes.
    fn read_rollout(
        &self,
        head: &RolloutHead,
        spare: Option<Rollout>,
        left: &mut &[u8],
    ) -> Result<Rollout, WireError> {
        let mut rollout = match spare {
            Some(mut spare) => {
                spare.final_at.clear();
                spare.final_legal.clear();
                spare
            }
            None => self.rollout(head.envs),
        };
        rollout.version = head.version;
        for &(t, b) in &head.final_at {
            rollout.keep_final(t, b);
        }
        let Rollout { obs, final_obs, .. } = &mut rollout;
        let finals = final_obs.leaves_mut();
        for ((_, shown), (_, last)) in obs.leaves_mut().into_iter().zip(finals) {
            stack::read(shown, last, &head.final_at, left)?;
        }
        for array in columns_mut(&mut rollout) {
            let column = take(left, array.bytes().len())?;
            array.bytes_mut().copy_from_slice(column);
        }
        let legal = rollout.final_legal.len();
        rollout.final_legal.copy_from_slice(take(left, legal)?);
        self.check_values(&rollout)?;
        Ok(rollout)
    }

    /// Refuses values that would harm a learner.
    fn check_values(&self, rollout: &Rollout) -> Result<(), WireError> {
        let flags = |array: &Array| array.bytes().iter().all(|flag| *flag <= 1);
        let legal = rollout.legal.as_ref();
        let good_flags = flags(&rollout.terminated)
            && flags(&rollout.truncated)
            && legal.is_none_or(flags)
            && rollout.final_legal.iter().all(|flag| *flag <= 1);
        let good_actions = match &self.action {
            Space::Discrete { n } => {
                let mut actions = rollout.actions.as_slice::<i64>().iter();
                actions.all(|action| (0..*n as i64).contains(action))
            }
            _ => true,
        };
        let mut rewards = rollout.rewards.as_slice::<f32>().iter();
        match good_flags && good_actions && rewards.all(|reward| reward.is_finite()) {
            true => Ok(()),
            false => Err(WireError::Unexpected("a value is out of its range".into())),
        }
    }

    /// Bytes of all columns for one environment.
    fn env_bytes(&self) -> usize {
        let legal = self.legal_actions.unwrap_or(0);
        let shown = self.observation.spec().item_bytes() + legal;
        let action = self.action.spec();
        let action = match action.leaf() {
            Some(action) => action.bytes(),
            // Named parts are side by side as floats.
            None => action
                .leaves()
                .iter()
                .map(|(_, part)| 4 * part.elements())
                .sum(),
        };
        const REWARD_AND_FLAGS: usize = 4 + 1 + 1;
        let done = action + REWARD_AND_FLAGS + self.records.item_bytes();
        (self.steps + 1) * shown + self.steps * done + self.state.item_bytes()
    }

    /// Bytes of the last observation of an episode.
    fn final_bytes(&self) -> usize {
        self.observation.spec().item_bytes() + self.legal_actions.unwrap_or(0)
    }
}

/// All columns but observations, in their order on the wire.
fn columns(rollout: &Rollout) -> Vec<&Array> {
    let trees = |tree| Tree::leaves(tree).into_iter().map(|(_, array)| array);
    let mut columns: Vec<&Array> = rollout.legal.iter().collect();
    columns.extend([&rollout.actions, &rollout.rewards]);
    columns.extend([&rollout.terminated, &rollout.truncated]);
    columns.extend(trees(&rollout.policy).chain(trees(&rollout.state)));
    columns
}

/// The same, to be written.
fn columns_mut(rollout: &mut Rollout) -> Vec<&mut Array> {
    fn arrays(tree: &mut Tree<Array>) -> impl Iterator<Item = &mut Array> {
        tree.leaves_mut().into_iter().map(|(_, array)| array)
    }
    let mut columns: Vec<&mut Array> = rollout.legal.iter_mut().collect();
    columns.extend([&mut rollout.actions, &mut rollout.rewards]);
    columns.extend([&mut rollout.terminated, &mut rollout.truncated]);
    columns.extend(arrays(&mut rollout.policy));
    columns.extend(arrays(&mut rollout.state));
    columns
}

/// Writes a header whose length and checksum follow in [`end_frame`].
fn begin_frame(kind: u8, out: &mut Vec<u8>) -> usize {
    let begin = out.len();
    out.extend(MAGIC);
    out.extend(PROTOCOL.to_le_bytes());
    out.extend([kind, 0]);
    out.extend([0; 12]);
    begin
}

fn end_frame(begin: usize, out: &mut [u8]) {
    let (header, body) = out[begin..].split_at_mut(HEADER_BYTES);
    header[8..16].copy_from_slice(&(body.len() as u64).to_le_bytes());
    header[16..20].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
}

/// The body of a whole frame.
fn read_frame(kind: u8, frame: &[u8], most: u64) -> Result<&[u8], WireError> {
    let (header, body) = frame
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or(WireError::Damaged)?;
    let length = body_bytes(header, most)?;
    let sum = u32::from_le_bytes(array(&header[16..20]));
    if body.len() != length || crc32c::crc32c(body) != sum {
        return Err(WireError::Damaged);
    }
    match header[KIND_AT] == kind {
        true => Ok(body),
        false => Err(WireError::Unexpected(format!(
            "a message of kind {}",
            header[KIND_AT]
        ))),
    }
}

fn take<'a>(left: &mut &'a [u8], bytes: usize) -> Result<&'a [u8], WireError> {
    let (taken, rest) = left.split_at_checked(bytes).ok_or(WireError::Damaged)?;
    *left = rest;
    Ok(taken)
}

/// Bytes of a slice whose length is known where it is called.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

#[cfg(test)]
mod tests;
