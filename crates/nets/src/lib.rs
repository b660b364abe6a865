//! Networks, distributions and optimisers. The only crate that uses libtorch.
//!
//! A network here is a description without weights: it says which parameters it needs and how to
//! compute with any set of them. So the learner, its target network and every actor share one
//! description, each with separate [`Params`].
//!
//! Read first: [`Params`] (all weights of a network as one flat tensor with named views),
//! [`ActorCritic`], [`QNetwork`] and [`QofAction`] (the families of networks), [`FeatureExtractor`]
//! (their part that looks at observations), [`Descent`] (the gradient step), [`Recorded`] (a
//! computation that a GPU can replay).

mod batch_renorm;
mod bf16;
mod bounded;
mod collective;
mod control_body;
mod convert;
mod descent;
mod device;
mod distribution;
pub mod export;
mod init;
mod layers;
mod model;
mod native;
mod noisy;
mod normalize;
mod novelty;
mod optimizer;
mod params;
mod q_network;
mod q_of_action;
mod recorded;
mod recurrent_q;
mod schedule;
mod snapshot;
mod speed;
mod stacked_mlp;
mod staging;
mod torso;
pub mod torsos;

pub use batch_renorm::Statistics;
pub use bf16::try_bf16;
pub use bounded::{
    ActionBounds, LogStdLimit, SquashedActor, SquashedGaussian, TanhActor, UnitScale, fill_normal,
};
pub use collective::{
    Collective, Gloo, GlooStore, Group, Mpi, Nccl, Spent, check_collective, nccl_version,
};
pub use control_body::ControlLayers;
pub use convert::{array_of, tensor_of, tensor_of_view, tree_of};
pub use descent::{Descent, Mover, ReduceError, Reducer, SharedReducer};
pub use device::{
    DeviceChoice, DeviceError, cuda_devices, load_cuda, set_threads, threads, torch_version,
    why_no_cuda,
};
pub use distribution::{ActionSampler, Distribution, PolicyHead, argmax, sample_categorical};
pub use init::Init;
pub use layers::{Activation, Conv2d, LayerNorm, Linear, Lstm};
pub use model::{ActorCritic, ActorCriticOutput, LastInput, NetConfig};
pub use native::{allow_tf32, copy_async, has_graphs, own_stream, synchronize, urgent_stream};
pub use noisy::{NoisyLinear, draw_noise};
pub use normalize::{Moments, RunningNorm};
pub use novelty::{InverseModel, RandomDistillation};
pub use optimizer::{Optimizer, OptimizerConfig, OptimizerKind};
pub use params::{Layout, ParamId, Params, ShapeMismatch};
pub use q_network::{QHead, QNetConfig, QNetwork, QuantileEmbedding, number_of_actions};
pub use q_of_action::{ControlNetConfig, QofAction};
pub use recorded::{Recorded, unrecorded};
pub use recurrent_q::{ExportedInput, LstmState, RecurrentInput, RecurrentQ, previous_actions};
pub use schedule::Schedule;
pub use snapshot::Snapshot;
pub use speed::product_speed;
pub use stacked_mlp::StackedMlp;
pub use staging::{Arriving, Landing, Staging, pin, send, staging_works};
pub use tch::{Device, Kind, Tensor, no_grad};
pub use torso::{FeatureExtractor, Inputs, Padding, PaddingRule, Torso};
pub use torsos::{TorsoName, TorsoSpec};
