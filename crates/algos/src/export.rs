//! Policies for other programs: as graphs, with the same computed by the program itself to compare with.

use starling_envs::Space;
use starling_nets::export::{Graph, NotExported, Value};
use starling_nets::{Device, Kind, Tensor};
use starling_tree::{Array, Tree};

use crate::Spaces;
use crate::value_based::greedy_action;

/// A policy as evaluations play it, without the random actions of `epsilon_eval`.
///
/// The inputs of its graph are the arrays of an observation by their names (`observation` if it has no named
/// parts), `legal_actions` where the environment has them, and what the policy remembers. Of the outputs
/// `action` is the one to take, and the others are what it is chosen by.
#[derive(Debug)]
pub struct Exported {
    /// Chooses actions.
    pub policy: Computation,
    /// Infers the input [`Z`] of the policy from transitions of its task, if it has one.
    ///
    /// The inputs of its graph are those that it needs of the arrays of an observation, [`ACTION`],
    /// [`REWARD`], [`TERMINATED`] and the arrays of the next observation (their names after [`NEXT`]), and
    /// what is known of the task so far. The outputs are the latter for the next transition, and
    /// [`Z_MEAN`] and [`Z_STD`].
    pub encoder: Option<Computation>,
}

/// A graph, and the same as the program itself computes it.
pub struct Computation {
    /// The computation.
    pub graph: Graph,
    /// Outputs by name, from inputs by name, as the program itself computes them.
    pub reference: Box<Reference>,
}

/// Outputs by name, from inputs by name.
pub type Reference = dyn Fn(&Inputs<'_>) -> Vec<(String, Tensor)>;

/// The inputs of a graph by name.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a>(pub &'a [(String, Tensor)]);

impl Exported {
    /// A policy without an encoder.
    pub(crate) fn policy(
        graph: Graph,
        reference: impl Fn(&Inputs<'_>) -> Vec<(String, Tensor)> + 'static,
    ) -> Self {
        Self {
            policy: Computation::new(graph, reference),
            encoder: None,
        }
    }
}

impl Computation {
    pub(crate) fn new(
        graph: Graph,
        reference: impl Fn(&Inputs<'_>) -> Vec<(String, Tensor)> + 'static,
    ) -> Self {
        Self {
            graph,
            reference: Box::new(reference),
        }
    }
}

impl std::fmt::Debug for Computation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Computation")
            .field("graph", &self.graph)
            .finish_non_exhaustive()
    }
}

/// The name of an observation without named parts.
pub const OBSERVATION: &str = "observation";

/// The input that says which actions are legal: bytes `[N, A]`, 0 for illegal ones.
pub const LEGAL: &str = "legal_actions";

/// The previous action, −1 (or zeros, if it is continuous) where an episode begins.
pub const LAST_ACTION: &str = "last_action";

/// The previous reward, 0 where an episode begins.
pub const LAST_REWARD: &str = "last_reward";

/// The action of a transition, and the output of a policy.
pub const ACTION: &str = "action";

/// The reward of a transition, `[N]`.
pub const REWARD: &str = "reward";

/// Whether a transition ended its episode: bytes `[N]`.
pub const TERMINATED: &str = "terminated";

/// What the names of the next observation's arrays begin with.
pub const NEXT: &str = "next_";

/// The variable that stands for the task, drawn once per trajectory.
pub const Z: &str = "z";

/// The mean of the normal distribution that [`Z`] is drawn from; 0 before the first transition.
pub const Z_MEAN: &str = "z_mean";

/// Its standard deviation; 1 before the first transition.
pub const Z_STD: &str = "z_std";

impl Inputs<'_> {
    /// One input.
    ///
    /// # Panics
    /// If there is none of this name.
    pub fn get(&self, name: &str) -> &Tensor {
        let found = self.0.iter().find(|(other, _)| other == name);
        match found {
            Some((_, tensor)) => tensor,
            None => panic!("the input '{name}' is missing"),
        }
    }

    /// Legal actions, if there are any.
    pub(crate) fn legal(&self) -> Option<&Tensor> {
        self.0
            .iter()
            .find(|(name, _)| name == LEGAL)
            .map(|(_, tensor)| tensor)
    }

    /// The observations.
    pub(crate) fn obs(&self, space: &Space) -> Tree<Tensor> {
        let names = observation_names(space);
        let mut names = names.iter();
        let empty = String::new();
        let spec = space.spec();
        spec.map(|_| self.get(names.next().unwrap_or(&empty)).shallow_clone())
    }

    /// How many observations there are.
    pub(crate) fn count(&self) -> usize {
        self.0
            .first()
            .map_or(0, |(_, tensor)| tensor.size()[0] as usize)
    }
}

/// The names of the arrays of an observation, in order.
pub fn observation_names(space: &Space) -> Vec<String> {
    let spec = space.spec();
    let leaves = spec.leaves().into_iter();
    leaves
        .map(|(name, _)| match name.is_empty() {
            true => OBSERVATION.to_owned(),
            false => name,
        })
        .collect()
}

/// Adds the observations, and the legal actions if there are any, to the inputs of a graph.
pub(crate) fn inputs(graph: &mut Graph, spaces: &Spaces) -> (Tree<Value>, Option<Value>) {
    let names = observation_names(&spaces.observation);
    let mut names = names.iter();
    let obs = spaces.observation.spec().map(|spec| {
        let name = names.next().map_or(OBSERVATION, String::as_str);
        graph.input(name, spec.dtype.into(), &spec.shape)
    });
    let legal = spaces
        .legal_actions
        .map(|count| graph.input(LEGAL, starling_nets::export::Element::U8, &[count]));
    (obs, legal)
}

/// The best legal actions `[N]` by values `[N, A]`, as policies choose them.
pub(crate) fn greedy(values: &Tensor, legal: Option<&Tensor>) -> Tensor {
    let mut values = starling_nets::array_of(values);
    let legal = legal.map(starling_nets::array_of);
    let rows = values.shape()[0];
    let actions = (0..rows).map(|row| {
        let legal = legal.as_ref().map(|legal| legal.at(&[row]));
        let legal = legal.map(|legal| legal.as_slice::<u8>());
        greedy_action(values.at_mut(&[row]).as_mut_slice::<f32>(), legal) as i64
    });
    Tensor::from_slice(&actions.collect::<Vec<_>>())
}

/// Rows of numbers as a tensor.
pub(crate) fn rows(array: &Array) -> Tensor {
    starling_nets::tensor_of(array, Device::Cpu)
}

/// Vectors with one 1, `[N, count]`, for actions `[N]`; zeros for −1.
pub(crate) fn one_hot(actions: &Tensor, count: usize) -> Tensor {
    let numbers = Tensor::arange(count as i64, (Kind::Int64, Device::Cpu));
    actions
        .unsqueeze(1)
        .eq_tensor(&numbers)
        .to_kind(Kind::Float)
}

/// Why an algorithm has no [`Exported`] policy.
pub(crate) fn not_implemented() -> NotExported {
    NotExported("this algorithm does not implement Algorithm::export".into())
}
