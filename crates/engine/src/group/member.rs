//! One learner's side of a group: rounds, all-reduce, and receiving the state of the most advanced
//! member.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use starling_algos::Saved;
use starling_nets::{
    Collective as _, Device, Gloo, GlooStore, Group, Mpi, Nccl, ReduceError, Reducer as _, Spent,
    nccl_version,
};
use starling_record::Row;

use super::{
    Agreement, Answer, Assembly, Formation, GroupError, Offer, Standing, StoreAt, Verdict, Word,
};
use crate::learn::Learning;
use crate::link::patience::SLICE;
use crate::{CollectiveLibrary, EngineError};

/// How long learner 0 waits for the others: they may be started by hand or by a scheduler.
const FIRST_GROUP: Duration = Duration::from_secs(1800);

/// After a signal to stop: how long to wait for the others.
const LAST_ROUND: Duration = Duration::from_secs(60);

/// Timeout of an all-reduce if a learner does not respond. If its process ended, the connection closes
/// and the call fails at once.
const TIME_OUT: Duration = Duration::from_secs(60);

/// Updates, gradient steps, bytes, and a checksum of names and shapes come before the state itself.
const HEADER: usize = 28;

/// A learner in a group.
pub(crate) struct Membership {
    assembly: Box<dyn Assembly>,
    group: Group,
    /// What averages gradients, and the learner's device.
    library: (CollectiveLibrary, Device),
    /// Where groups form, and this machine's address; known once the first one forms.
    store: Option<(GlooStore, String)>,
    /// Whether the next offer has a checksum.
    check: bool,
    /// Learners in the present group.
    members: usize,
    generation: u64,
    /// Gradients by the last row of metrics.
    reported: Spent,
}

impl Membership {
    pub(crate) fn new(
        assembly: Box<dyn Assembly>,
        group: Group,
        library: (CollectiveLibrary, Device),
    ) -> Self {
        Self {
            assembly,
            group,
            library,
            store: None,
            check: false,
            members: 1,
            generation: 0,
            reported: Spent::default(),
        }
    }

    pub(crate) fn rank(&self) -> usize {
        self.assembly.rank()
    }

    /// Adds the group's metrics to a row.
    pub(crate) fn report(&mut self, row: &mut Row) {
        let spent = self.group.spent();
        let before = std::mem::replace(&mut self.reported, spent);
        let new = (spent.gradients - before.gradients).max(1) as f64;
        let mean_ms = |time: Duration| time.as_secs_f64() * 1e3 / new;
        row.set("Diagnostics/Learners", self.members as f64);
        row.set("Diagnostics/Groups", self.generation as f64);
        let averaging = mean_ms(spent.averaging - before.averaging);
        row.set("Diagnostics/AveragingMs", averaging);
        let waiting = mean_ms(spent.waiting - before.waiting);
        row.set("Diagnostics/AveragingWaitMs", waiting);
    }

    fn standing(&self, learning: &Learning) -> Standing {
        Standing {
            updates: learning.updates,
            steps: self.group.applied(),
        }
    }

    /// Waits for a group and receives its state. Returns the steps of the run so far.
    pub(crate) fn join(
        &mut self,
        learning: &mut Learning,
        stop: &AtomicBool,
    ) -> Result<u64, EngineError> {
        let word = Word::Ready(self.standing(learning));
        // The others wait for as long as learner 0 is there, which may be busy.
        let most = (self.rank() == 0).then_some(FIRST_GROUP);
        match self.meet(word, stop, most)? {
            Answer::Form(formation) => {
                let env_steps = formation.env_steps;
                self.settle_in(formation, learning, stop)?;
                Ok(env_steps)
            }
            _ => Err(GroupError::Closed.into()),
        }
    }

    /// Sends the offer of a round, and waits for the agreement.
    pub(crate) fn agree(
        &mut self,
        mut offer: Offer,
        learning: &mut Learning,
        stop: &AtomicBool,
    ) -> Result<Agreement, EngineError> {
        loop {
            offer.standing = self.standing(learning);
            offer.checksum = self.check.then(|| checksum(learning));
            match self.meet(Word::Offer(offer.clone()), stop, None)? {
                Answer::Agree(agreement) => {
                    self.check = agreement.check;
                    return Ok(agreement);
                }
                Answer::Form(formation) => {
                    self.check = false;
                    self.settle_in(formation, learning, stop)?;
                }
                _ => return Err(GroupError::Closed.into()),
            }
        }
    }

    /// An update was made.
    pub(crate) fn updated(&self) {
        self.group.begin_update(0);
    }

    /// After a failed all-reduce: forms a new group with the state of the most advanced member.
    pub(crate) fn recover(
        &mut self,
        failure: &ReduceError,
        learning: &mut Learning,
        stop: &AtomicBool,
    ) -> Result<(), EngineError> {
        learning.abandon();
        let formation = self.ask_for_group(failure, learning, stop)?;
        self.settle_in(formation, learning, stop)
    }

    /// Learner 0: sends the verdict on the round.
    pub(crate) fn close(&mut self, verdict: Verdict) -> Result<(), EngineError> {
        Ok(self.assembly.say(Word::Close(verdict))?)
    }

    /// The others: wait for the verdict on the round, which may have broken for some of them.
    pub(crate) fn verdict(
        &mut self,
        learning: &mut Learning,
        stop: &AtomicBool,
    ) -> Result<Verdict, EngineError> {
        loop {
            match self.meet(Word::Done(self.standing(learning)), stop, None)? {
                Answer::Verdict(verdict) => return Ok(verdict),
                Answer::Form(formation) => self.settle_in(formation, learning, stop)?,
                _ => return Err(GroupError::Closed.into()),
            }
        }
    }

    /// The others: the run ends, because this learner cannot continue.
    pub(crate) fn fail(&mut self, reason: String) {
        // If learner 0 is gone, there is nobody to tell.
        let _ = self.assembly.say(Word::Failed(reason));
    }

    fn ask_for_group(
        &mut self,
        failure: &ReduceError,
        learning: &Learning,
        stop: &AtomicBool,
    ) -> Result<Formation, EngineError> {
        tracing::warn!("{failure}");
        if self.library.0 == CollectiveLibrary::Mpi {
            return Err(GroupError::Dissolved(failure.0.clone()).into());
        }
        // The others hear of it, whatever they wait for.
        self.group.leave();
        let word = Word::Broken {
            standing: self.standing(learning),
            reason: failure.0.clone(),
        };
        match self.meet(word, stop, None)? {
            Answer::Form(formation) => Ok(formation),
            _ => Err(GroupError::Closed.into()),
        }
    }

    fn settle_in(
        &mut self,
        mut formation: Formation,
        learning: &mut Learning,
        stop: &AtomicBool,
    ) -> Result<(), EngineError> {
        loop {
            self.group.leave();
            let began = Instant::now();
            match self.enter(&formation, learning) {
                Ok(()) => {
                    // Steps that the most advanced one has applied are not applied again.
                    self.group.begin_update(self.group.applied());
                    let word = Word::Entered {
                        standing: self.standing(learning),
                        checksum: checksum(learning),
                    };
                    match self.meet(word, stop, None)? {
                        Answer::Equal => {}
                        // It broke, or lost a member, before all were in it.
                        Answer::Form(another) => {
                            formation = another;
                            continue;
                        }
                        _ => return Err(GroupError::Closed.into()),
                    }
                    let took_ms = began.elapsed().as_millis() as u64;
                    tracing::info!(
                        generation = formation.generation,
                        learners = ?formation.members,
                        size = self.group.size(),
                        most_advanced = formation.most_advanced,
                        updates = learning.updates,
                        took_ms,
                        "in group {}",
                        formation.generation
                    );
                    (self.members, self.generation) =
                        (formation.members.len(), formation.generation);
                    return Ok(());
                }
                Err(Trouble::Group(failure)) => {
                    formation = self.ask_for_group(&failure, learning, stop)?;
                }
                Err(Trouble::Final(error)) => return Err(error),
            }
        }
    }

    /// Joins a group, and receives the state of its most advanced member.
    fn enter(&mut self, formation: &Formation, learning: &mut Learning) -> Result<(), Trouble> {
        let (library, device) = self.library;
        if library == CollectiveLibrary::Mpi {
            self.enter_mpi(formation)?;
        } else if formation.members.len() < 2 {
            return Ok(());
        } else {
            self.enter_by_store(formation, library, device)?;
        }
        let (rank, most_advanced) = (self.rank(), formation.most_advanced);
        let position = |rank| formation.position(rank);
        let root = position(most_advanced).unwrap_or(0);
        let own = learning.learner.save();
        let mut header = header(self.standing(learning), &own);
        let expected = header;
        self.group.broadcast_bytes(&mut header, root)?;
        if header[16..] != expected[16..] {
            return Err(Trouble::Final(
                GroupError::Misfit {
                    rank,
                    most_advanced,
                }
                .into(),
            ));
        }
        let mut state: Vec<u8> = shared(&own)
            .flat_map(|(_, array)| array.bytes())
            .copied()
            .collect();
        self.group.broadcast_bytes(&mut state, root)?;
        if rank == most_advanced {
            return Ok(());
        }
        let (mut healed, mut rest) = (own, &state[..]);
        for (_, array) in healed.iter_mut().filter(|(name, _)| is_shared(name)) {
            let (its, others) = rest.split_at(array.bytes().len());
            array.bytes_mut().copy_from_slice(its);
            rest = others;
        }
        learning.learner.load(&healed).map_err(|source| {
            Trouble::Final(EngineError::Learn {
                step: formation.env_steps,
                source,
            })
        })?;
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        learning.updates = number(0);
        self.group.begin_update(number(8));
        Ok(())
    }

    /// All processes that `mpirun` started, which is possible once.
    fn enter_mpi(&mut self, formation: &Formation) -> Result<(), Trouble> {
        let members = formation.members.len();
        let last = |error: GroupError| Trouble::Final(error.into());
        if formation.generation > 1 {
            let reason = format!("{members} are left");
            return Err(last(GroupError::Dissolved(reason)));
        }
        let mpi = Mpi::join(TIME_OUT);
        let mpi = mpi.map_err(|error| last(GroupError::Unusable(error.to_string())))?;
        if mpi.size() != members {
            let text = format!(
                "mpirun started {} processes for {members} learners",
                mpi.size()
            );
            return Err(last(GroupError::Unreachable(text)));
        }
        Ok(self.group.enter(move || Ok(Box::new(mpi)))?)
    }

    /// A group whose members find each other by the store.
    fn enter_by_store(
        &mut self,
        formation: &Formation,
        library: CollectiveLibrary,
        device: Device,
    ) -> Result<(), Trouble> {
        if library == CollectiveLibrary::Nccl {
            let usable = match device {
                Device::Cpu => Err("collective=nccl needs a GPU: set device=cuda:0".to_owned()),
                _ => nccl_version().map_err(|error| error.to_string()),
            };
            usable.map_err(|reason| Trouble::Final(GroupError::Unusable(reason).into()))?;
        }
        let own = formation.position(self.rank());
        let own = own.ok_or_else(|| Trouble::Final(GroupError::Closed.into()))?;
        let (store, address) = self.store()?;
        let (store, address) = (store.clone(), address.clone());
        let name = format!("group-{}", formation.generation);
        let size = formation.members.len();
        Ok(self.group.enter(move || {
            let gloo = Gloo::join(&store, &name, &address, own, size, TIME_OUT)?;
            Ok(match library {
                CollectiveLibrary::Nccl => Box::new(Nccl::join(gloo, device, TIME_OUT)?),
                _ => Box::new(gloo),
            })
        })?)
    }

    /// Where groups form.
    fn store(&mut self) -> Result<&(GlooStore, String), Trouble> {
        let store = match self.store.take() {
            Some(store) => store,
            None => {
                let point = self.assembly.meeting_point();
                let point = point.map_err(|error| Trouble::Final(error.into()))?;
                let store = match point.store {
                    StoreAt::Here(listener) => GlooStore::serve(listener, TIME_OUT),
                    StoreAt::There(address) => GlooStore::connect(address, TIME_OUT),
                };
                (store?, point.address.to_string())
            }
        };
        Ok(self.store.insert(store))
    }

    /// Sends a message and waits for the reply. There is no time limit for a learner that computes or
    /// evaluates: the transport detects lost ones by keep-alive.
    fn meet(
        &mut self,
        word: Word,
        stop: &AtomicBool,
        most: Option<Duration>,
    ) -> Result<Answer, EngineError> {
        self.assembly.say(word)?;
        let began = Instant::now();
        let mut stopping: Option<Instant> = None;
        loop {
            match self.assembly.hear(SLICE)? {
                Some(Answer::Failed(error)) => return Err(error.into()),
                Some(answer) => return Ok(answer),
                None => {}
            }
            if stop.load(Ordering::Relaxed)
                && stopping.get_or_insert_with(Instant::now).elapsed() > LAST_ROUND
            {
                return Err(GroupError::Closed.into());
            }
            if let Some(most) = most.filter(|most| began.elapsed() > *most) {
                let seconds = most.as_secs();
                return Err(GroupError::Missing { seconds }.into());
            }
        }
    }
}

enum Trouble {
    /// The group broke.
    Group(ReduceError),
    Final(EngineError),
}

impl From<ReduceError> for Trouble {
    fn from(error: ReduceError) -> Self {
        Trouble::Group(error)
    }
}

/// Whether all learners of a group share this state: each keeps its own random stream.
fn is_shared(name: &str) -> bool {
    name != "rng"
}

fn shared(saved: &Saved) -> impl Iterator<Item = (&String, &starling_tree::Array)> {
    saved.iter().filter(|(name, _)| is_shared(name))
}

/// Progress, the number of bytes, and a checksum of names, types and shapes.
fn header(standing: Standing, saved: &Saved) -> [u8; HEADER] {
    let bytes: usize = shared(saved).map(|(_, array)| array.bytes().len()).sum();
    let layout = shared(saved).fold(0, |sum, (name, array)| {
        let what = format!("{name}{:?}{:?}", array.dtype(), array.shape());
        crc32c::crc32c_append(sum, what.as_bytes())
    });
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&standing.updates.to_le_bytes());
    header[8..16].copy_from_slice(&standing.steps.to_le_bytes());
    header[16..24].copy_from_slice(&(bytes as u64).to_le_bytes());
    header[24..].copy_from_slice(&layout.to_le_bytes());
    header
}

/// A checksum of the state that all learners of a group share.
pub(crate) fn checksum(learning: &Learning) -> u32 {
    let saved = learning.learner.save();
    shared(&saved).fold(0, |sum, (_, array)| {
        crc32c::crc32c_append(sum, array.bytes())
    })
}
