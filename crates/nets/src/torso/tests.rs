use super::*;
use crate::TorsoName;
use starling_envs::stream;
use std::sync::Arc;
use tch::Device;

fn named(torso: &str) -> TorsoName {
    TorsoName::find(torso).unwrap()
}

fn features(config: &NetConfig) -> usize {
    let space = Space::bytes(&[4, 84, 84], 255);
    let torso = Torso::new(&mut Layout::default(), "t", &space, config);
    torso.unwrap().features
}

/// Before and after their fully connected layers.
#[test]
fn networks_for_pictures_have_the_published_sizes() {
    for (torso, flat, usual) in [
        (named("auto"), 3136, 512),
        (named("nature"), 3136, 512),
        (named("simpleconv"), 7744, 512),
        (named("shallow"), 2592, 256),
        (named("resnet"), 3872, 256),
    ] {
        let mut config = NetConfig {
            torso,
            ..NetConfig::default()
        };
        assert_eq!(features(&config), usual, "{torso:?}");
        config.hidden = Some(vec![]);
        assert_eq!(features(&config), flat, "{torso:?}");
        config.width = 2;
        assert_eq!(features(&config), 2 * flat, "{torso:?}");
    }
}

/// The networks of rlpyt on its pictures of 104×80, and those of IMPALA with TensorFlow's
/// padding, whose sizes are the same.
#[test]
fn padding_gives_the_published_sizes() {
    let rlpyt = Space::bytes(&[4, 104, 80], 255);
    let usual = Space::bytes(&[4, 84, 84], 255);
    let zeros = |sizes: &[usize]| Some(Padding::Zeros(sizes.to_vec()));
    let same = Some(Padding::Rule(PaddingRule::Same));
    for (torso, padding, space, flat) in [
        (named("nature"), zeros(&[0, 1, 1]), &rlpyt, 6912),
        (named("shallow"), zeros(&[0, 1]), &rlpyt, 3456),
        (named("nature"), zeros(&[1, 0, 0]), &usual, 3136),
        (named("simpleconv"), same.clone(), &usual, 7744),
        (named("resnet"), same.clone(), &usual, 3872),
    ] {
        let config = NetConfig {
            torso,
            padding: padding.clone(),
            hidden: Some(vec![]),
            ..NetConfig::default()
        };
        let mut layout = Layout::default();
        let torso = Torso::new(&mut layout, "t", space, &config).unwrap();
        assert_eq!(torso.features, flat, "{padding:?}");
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let shape = [&[2], space.spec().leaf().unwrap().shape.as_slice()].concat();
        let shape: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
        let image = Tensor::ones(&shape, (Kind::Uint8, Device::Cpu));
        let features = torso.forward(&params, &Tree::Leaf(image));
        assert_eq!(features.size(), [2, flat as i64], "{padding:?}");
    }
    let refused = |torso, padding| {
        let config = NetConfig {
            torso,
            padding,
            ..NetConfig::default()
        };
        let torso = Torso::new(&mut Layout::default(), "t", &usual, &config);
        torso.unwrap_err().0
    };
    let message = refused(named("nature"), zeros(&[0, 1]));
    assert!(message.contains("must have 3 numbers"), "{message}");
    let message = refused(named("resnet"), zeros(&[1, 1, 1]));
    assert!(message.contains("`same`"), "{message}");
    let message = refused(named("mlp"), same);
    assert!(message.contains("has none"), "{message}");
}

#[test]
fn padding_is_a_word_or_a_list() {
    let read = |text: &str| serde_json::from_str::<Padding>(text);
    assert_eq!(read("\"same\"").unwrap(), Padding::Rule(PaddingRule::Same));
    assert_eq!(read("[0, 1]").unwrap(), Padding::Zeros(vec![0, 1]));
    assert!(
        read("\"valid\"")
            .unwrap_err()
            .to_string()
            .contains("`same`")
    );
}

/// Every kind gives as many features as it says, with layer normalisation too.
#[test]
fn pictures_pass_every_network() {
    for torso in [named("simpleconv"), named("shallow"), named("resnet")] {
        let config = NetConfig {
            torso,
            layer_norm: true,
            ..NetConfig::default()
        };
        let mut layout = Layout::default();
        let space = Space::bytes(&[1, 40, 36], 255);
        let torso = Torso::new(&mut layout, "t", &space, &config).unwrap();
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let obs = Tensor::zeros([3, 1, 40, 36], (Kind::Uint8, Device::Cpu));
        let out = torso.forward(&params, &Tree::Leaf(obs));
        assert_eq!(out.size(), [3, torso.features as i64]);
    }
}

/// However an image lies in memory, features and gradients are the same. Sizes are
/// multiples of the stride or not.
#[test]
fn the_order_in_memory_changes_nothing() {
    for (torso, width) in [
        (named("nature"), 43),
        (named("nature"), 44),
        (named("shallow"), 42),
        (named("resnet"), 43),
    ] {
        let space = Space::bytes(&[3, 52, width], 255);
        let outcome = |channels_last: bool| {
            let config = NetConfig {
                torso,
                channels_last,
                ..NetConfig::default()
            };
            let mut layout = Layout::default();
            let torso = Torso::new(&mut layout, "t", &space, &config).unwrap();
            let rng = &mut stream(1, "init", 0);
            let params = Params::init(&Arc::new(layout), rng, Device::Cpu).trainable();
            let size = [2, 3, 52, width as i64];
            let pixels = Tensor::arange(size.iter().product::<i64>(), (Kind::Int64, Device::Cpu));
            let pixels = (pixels * 7919).remainder(256).to_kind(Kind::Uint8);
            let obs = Tree::Leaf(pixels.reshape(size));
            let features = torso.forward(&params, &obs);
            let gradient = params.gradient(&features.square().sum(Kind::Float));
            (features.detach(), gradient)
        };
        let ((features, gradient), (others, its)) = (outcome(false), outcome(true));
        // Sums in another order differ in their last digits.
        let difference = |a: &Tensor, b: &Tensor| ((a - b).norm() / a.norm()).double_value(&[]);
        assert!(features.max().double_value(&[]) > 0.01, "{torso:?}");
        let (of_features, of_gradient) =
            (difference(&features, &others), difference(&gradient, &its));
        assert!(of_features < 1e-5, "{torso:?}: {of_features}");
        assert!(of_gradient < 1e-4, "{torso:?}: {of_gradient}");
    }
}

#[test]
fn settings_without_effect_are_refused() {
    let refused = |config: NetConfig, space: &Space| {
        let torso = Torso::new(&mut Layout::default(), "t", space, &config);
        torso.unwrap_err().to_string()
    };
    let config = NetConfig {
        width: 2,
        ..NetConfig::default()
    };
    assert!(refused(config, &Space::unbounded(&[3])).contains("net.width"));
    let config = NetConfig {
        normalize_observations: true,
        ..NetConfig::default()
    };
    let message = refused(config, &Space::bytes(&[4, 84, 84], 255));
    assert!(message.contains("net.normalize_observations"), "{message}");
}

/// Observations with mean 5 and deviation 2 reach the layers with mean 0 and deviation 1.
#[test]
fn observations_are_normalised_by_what_was_seen() {
    let config = NetConfig {
        normalize_observations: true,
        hidden: Some(vec![]),
        ..NetConfig::default()
    };
    let mut layout = Layout::default();
    let torso = Torso::new(&mut layout, "t", &Space::unbounded(&[1]), &config).unwrap();
    let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
    let obs = Tree::Leaf(Tensor::from_slice(&[3f32, 7.0]).reshape([2, 1]));
    for (norm, moments) in torso.seen(&obs) {
        norm.merge(&params, &moments);
    }
    let out = torso.forward(&params, &obs).reshape([-1]);
    let out = Vec::<f32>::try_from(out).unwrap();
    assert!(
        (out[0] + 1.0).abs() < 1e-2 && (out[1] - 1.0).abs() < 1e-2,
        "{out:?}"
    );
}

#[test]
fn named_parts_and_choices_are_laid_side_by_side() {
    let space = Space::Dict(vec![
        ("speed".into(), Space::unbounded(&[2])),
        ("gear".into(), Space::Discrete { n: 3 }),
    ]);
    let config = NetConfig {
        hidden: Some(vec![]),
        ..NetConfig::default()
    };
    let mut layout = Layout::default();
    let torso = Torso::new(&mut layout, "t", &space, &config);
    let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
    let obs = Tree::node([
        (
            "speed",
            Tree::Leaf(Tensor::from_slice(&[0.5f32, -2.0]).reshape([1, 2])),
        ),
        ("gear", Tree::Leaf(Tensor::from_slice(&[1i64]))),
    ]);
    let features = torso.unwrap().forward(&params, &obs).reshape([-1]);
    let features = Vec::<f32>::try_from(features).unwrap();
    assert_eq!(features, [0.5, -2.0, 0.0, 1.0, 0.0]);
}
