//! THE table of torsos: the values of `algo.net.torso`.
//!
//! One outside of this crate is [added](add).

use std::borrow::Cow;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use starling_envs::Space;
use starling_settings::parse_config;
use tch::{Device, Kind, Tensor};

use crate::convert::kind_of;
use crate::torso::{BuiltIn, Convolutions};
use crate::{FeatureExtractor, Layout, NetConfig, Params, ShapeMismatch};

/// One line of the table.
pub struct TorsoSpec {
    /// The value of `algo.net.torso`.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub summary: &'static str,
    build: Box<Build>,
}

type Build = dyn Fn(&mut Layout, &str, &Space, &NetConfig) -> Built + Send + Sync;

/// A network, or why it does not fit the observations or the settings.
pub type Built = Result<Box<dyn FeatureExtractor>, ShapeMismatch>;

impl TorsoSpec {
    /// A torso with the settings `C` in `algo.net.torso_options`. `build` makes it for observations
    /// of a space: it adds its parameters to the layout, under names that begin with the given one.
    /// It also sees the settings of the network, of which [`Inputs`](crate::Inputs) follows
    /// `normalize_observations` and `bf16`; `width` and `padding` belong to the built-in torsos.
    pub fn new<C>(
        name: &'static str,
        summary: &'static str,
        build: fn(C, &mut Layout, &str, &Space, &NetConfig) -> Built,
    ) -> Self
    where
        C: Default + Serialize + DeserializeOwned + JsonSchema + 'static,
    {
        let of_options = move |layout: &mut Layout, at: &str, space: &Space, net: &NetConfig| {
            if net.width != 1 || net.padding.is_some() {
                return Err(ShapeMismatch(format!(
                    "net.width and net.padding are for built-in torsos, not for '{name}'; set them \
                     to 1 and null"
                )));
            }
            let given = net.torso_options.clone().unwrap_or_default();
            let options = parse_config("algo.net.torso_options", &Value::Object(given));
            let options = options.map_err(|error| ShapeMismatch(error.to_string()))?;
            let built = build(options, layout, at, space, net)?;
            try_out(&*built, layout, space, net)
                .map_err(|what| ShapeMismatch(format!("the torso '{name}' {what}")))?;
            Ok(built)
        };
        Self {
            name,
            summary,
            build: Box::new(of_options),
        }
    }

    fn built_in(name: &'static str, kind: BuiltIn, summary: &'static str) -> Self {
        let build = move |layout: &mut Layout, at: &str, space: &Space, net: &NetConfig| {
            if net.torso_options.is_some() {
                return Err(ShapeMismatch(format!(
                    "net.torso_options is for a torso of your own, and '{name}' is built in; set it \
                     to null"
                )));
            }
            let built = Convolutions::new(kind, layout, at, space, net)?;
            Ok(Box::new(built) as Box<dyn FeatureExtractor>)
        };
        Self {
            name,
            summary,
            build: Box::new(build),
        }
    }
}

/// Shows two observations of zeros to a torso, so that a mistake is told before a run.
fn try_out(
    built: &dyn FeatureExtractor,
    layout: &Layout,
    space: &Space,
    net: &NetConfig,
) -> Result<(), String> {
    let obs = space.spec().map(|spec| {
        let shape = [2].into_iter().chain(spec.shape.iter().map(|&n| n as i64));
        let shape: Vec<i64> = shape.collect();
        Tensor::zeros(&shape, (kind_of(spec.dtype), Device::Cpu))
    });
    if net.normalize_observations && built.seen(&obs).is_empty() {
        return Err("does not normalise observations; set net.normalize_observations=false".into());
    }
    let params = Params::zeros(&Arc::new(layout.clone()), Device::Cpu);
    let features = tch::no_grad(|| built.forward(&params, &obs));
    let expected = [2, built.features() as i64];
    let good =
        features.size() == expected && [Kind::Float, Kind::BFloat16].contains(&features.kind());
    match good {
        true => Ok(()),
        false => Err(format!(
            "gives {:?} {:?} for two observations, but {expected:?} of floats is needed",
            features.kind(),
            features.size()
        )),
    }
}

/// The value of `algo.net.torso`: the name of a torso in the table. `auto` unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TorsoName(&'static str);

impl TorsoName {
    /// The torso of this name.
    pub fn find(name: &str) -> Result<Self, UnknownTorso> {
        let found = all().into_iter().find(|spec| spec.name == name);
        found
            .map(|spec| Self(spec.name))
            .ok_or_else(|| UnknownTorso {
                name: name.to_owned(),
            })
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// The network for observations of a space.
    pub(crate) fn build(
        self,
        layout: &mut Layout,
        name: &str,
        space: &Space,
        config: &NetConfig,
    ) -> Built {
        match all().into_iter().find(|spec| spec.name == self.0) {
            Some(spec) => (spec.build)(layout, name, space, config),
            None => Err(ShapeMismatch(format!("there is no torso '{}'", self.0))),
        }
    }
}

impl Default for TorsoName {
    fn default() -> Self {
        Self("auto")
    }
}

impl<'de> Deserialize<'de> for TorsoName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::find(&name).map_err(D::Error::custom)
    }
}

/// All that were in the table when it was first asked for.
impl JsonSchema for TorsoName {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "TorsoName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let choice = |spec: &TorsoSpec| json!({"const": spec.name, "description": spec.summary});
        let choices: Vec<Value> = all().into_iter().map(choice).collect();
        json_schema!({ "oneOf": choices })
    }
}

/// A name that no torso has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no torso called '{name}'; expected one of {}", names())]
pub struct UnknownTorso {
    /// The name that was given.
    pub name: String,
}

fn names() -> String {
    let names: Vec<String> = all()
        .iter()
        .map(|spec| format!("`{}`", spec.name))
        .collect();
    names.join(", ")
}

/// All torsos: the built-in ones, then those that were [added](add).
pub fn all() -> Vec<&'static TorsoSpec> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
    TABLE.iter().chain(added.iter().copied()).collect()
}

/// Adds your own torso, so that every algorithm of this program can use it by its name. It stays
/// until the program ends. A program that resumes, evaluates or acts for the run has to add it too.
///
/// # Errors
/// When there is already a torso of this name.
pub fn add(spec: TorsoSpec) -> Result<(), TorsoExists> {
    let name = spec.name;
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    let mut known = TABLE.iter().chain(added.iter().copied());
    if known.any(|known| known.name == name) {
        return Err(TorsoExists(name));
    }
    added.push(Box::leak(Box::new(spec)));
    Ok(())
}

/// A name that a torso has already.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is already a torso called '{0}'")]
pub struct TorsoExists(pub &'static str);

static ADDED: RwLock<Vec<&'static TorsoSpec>> = RwLock::new(Vec::new());

static TABLE: LazyLock<Vec<TorsoSpec>> = LazyLock::new(|| {
    vec![
        TorsoSpec::built_in(
            "auto",
            BuiltIn::Auto,
            "`nature` for images of 64×64 and more, `minatar` for smaller ones, `mlp` for vectors.",
        ),
        TorsoSpec::built_in(
            "mlp",
            BuiltIn::Mlp,
            "Fully connected layers over everything, laid flat.",
        ),
        TorsoSpec::built_in(
            "minatar",
            BuiltIn::MinAtar,
            "One convolution of 16 filters, 3×3: for grids of about 10×10 (Young and Tian 2019).",
        ),
        TorsoSpec::built_in(
            "nature",
            BuiltIn::Nature,
            "Three convolutions, of 32 filters 8×8, 64 4×4 and 64 3×3 (Mnih et al. 2015).",
        ),
        TorsoSpec::built_in(
            "simpleconv",
            BuiltIn::SimpleConv,
            "The same three with padding: 7744 features of 84×84 (the multi-learner IMPALA's \
             SimpleConv).",
        ),
        TorsoSpec::built_in(
            "shallow",
            BuiltIn::Shallow,
            "Two convolutions, of 16 filters 8×8 and 32 4×4, and 256 hidden units: IMPALA's shallow \
             network (Espeholt et al. 2018).",
        ),
        TorsoSpec::built_in(
            "resnet",
            BuiltIn::ResNet,
            "IMPALA's deep network: three sections of 16, 32 and 32 filters, each a convolution, a \
             pool and two residual blocks, and 256 hidden units.",
        ),
    ]
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activation, Init, Inputs, Linear, Moments, RunningNorm, Torso};
    use starling_envs::stream;
    use starling_tree::Tree;

    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields, default)]
    struct Options {
        units: usize,
        honest: bool,
    }

    impl Default for Options {
        fn default() -> Self {
            Self {
                units: 5,
                honest: true,
            }
        }
    }

    #[derive(Debug)]
    struct Own {
        inputs: Inputs,
        layer: Linear,
        features: usize,
    }

    impl FeatureExtractor for Own {
        fn features(&self) -> usize {
            self.features
        }

        fn forward(&self, params: &Params, obs: &Tree<Tensor>) -> Tensor {
            let parts = self.inputs.prepare(params, obs);
            let flat: Vec<Tensor> = parts.iter().map(|x| x.flatten(1, -1)).collect();
            self.layer.forward(params, &Tensor::cat(&flat, -1))
        }

        fn seen(&self, obs: &Tree<Tensor>) -> Vec<(RunningNorm, Moments)> {
            self.inputs.seen(obs)
        }
    }

    fn own(o: Options, layout: &mut Layout, name: &str, space: &Space, net: &NetConfig) -> Built {
        let inputs = Inputs::new(layout, name, space, net)?;
        let shapes = inputs.shapes();
        let flat: usize = shapes.iter().map(|s| s.iter().product::<usize>()).sum();
        let init = Init::Constant(0.5);
        let layer = Linear::new(layout, &format!("{name}.own"), flat, o.units, init);
        Ok(Box::new(Own {
            inputs,
            layer,
            features: o.units + usize::from(!o.honest),
        }))
    }

    /// The network with this name in the table, which tests share.
    fn config(options: Value) -> NetConfig {
        let _ = add(TorsoSpec::new("own", "one layer", own));
        NetConfig {
            torso: TorsoName::find("own").unwrap(),
            torso_options: options.as_object().cloned(),
            ..NetConfig::default()
        }
    }

    fn space() -> Space {
        Space::Dict(vec![
            ("picture".into(), Space::bytes(&[1, 2, 2], 255)),
            ("gear".into(), Space::Discrete { n: 3 }),
        ])
    }

    /// It has parameters and options, sees prepared observations, and fully connected layers
    /// follow it.
    #[test]
    fn a_torso_of_ones_own_is_used_like_a_built_in_one() {
        let config = NetConfig {
            hidden: Some(vec![2]),
            activation: Activation::Tanh,
            ..config(json!({"units": 4}))
        };
        let mut layout = Layout::default();
        let torso = Torso::new(&mut layout, "torso", &space(), &config).unwrap();
        assert_eq!(torso.features, 2);
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let names: Vec<String> = params.named().into_iter().map(|(name, _)| name).collect();
        let expected = ["own.weight", "own.bias", "hidden0.weight", "hidden0.bias"];
        assert_eq!(names, expected.map(|name| format!("torso.{name}")));
        let obs = Tree::node([
            (
                "picture",
                Tree::Leaf(Tensor::full([3, 1, 2, 2], 255, (Kind::Uint8, Device::Cpu))),
            ),
            ("gear", Tree::Leaf(Tensor::from_slice(&[0i64, 1, 2]))),
        ]);
        assert_eq!(torso.forward(&params, &obs).size(), [3, 2]);
        let flat = NetConfig {
            hidden: None,
            ..config
        };
        let mut layout = Layout::default();
        let torso = Torso::new(&mut layout, "torso", &space(), &flat).unwrap();
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        // Four white pixels and one choice, all weights ½ and no bias.
        let features = torso.forward(&params, &obs);
        let features = Vec::<f32>::try_from(features.reshape([-1])).unwrap();
        assert_eq!(features, [2.5; 12]);
    }

    #[test]
    fn its_mistakes_are_told_when_it_is_made() {
        let refused = |config: &NetConfig| {
            let torso = Torso::new(&mut Layout::default(), "t", &space(), config);
            torso.unwrap_err().0
        };
        let message = refused(&config(json!({"unit": 4})));
        assert!(
            message.contains(
                "'algo.net.torso_options.unit'; did you mean algo.net.torso_options.units"
            ),
            "{message}"
        );
        let message = refused(&config(json!({"honest": false})));
        assert!(
            message.contains("'own' gives Float [2, 5] for two observations, but [2, 6]"),
            "{message}"
        );
        let wide = NetConfig {
            width: 2,
            ..config(json!({}))
        };
        assert!(refused(&wide).contains("built-in"));
        let built_in = NetConfig {
            torso: TorsoName::default(),
            ..config(json!({}))
        };
        assert!(refused(&built_in).contains("torso_options"));
        assert_eq!(
            add(TorsoSpec::new("mlp", "one layer", own)).unwrap_err(),
            TorsoExists("mlp")
        );
    }

    #[test]
    fn unknown_names_list_what_exists() {
        let error = serde_json::from_str::<TorsoName>("\"natur\"").unwrap_err();
        let message = error.to_string();
        let expected = "there is no torso called 'natur'; expected one of `auto`, `mlp`, `minatar`, \
                        `nature`, `simpleconv`, `shallow`, `resnet`";
        assert!(message.starts_with(expected), "{message}");
        let read: TorsoName = serde_json::from_str("\"nature\"").unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), "\"nature\"");
    }
}
