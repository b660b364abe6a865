//! Every space of Gymnasium that has a fixed size is used; the others are refused with advice.

use crate::{own, python, rollout, vector};
use serde_json::json;
use starling_envs::{Bounds, Space};
use starling_tree::{Array, DType, Tree};

fn part<'a>(obs: &'a Tree<Array>, path: &str) -> &'a Array {
    obs.get(path).unwrap().leaf().unwrap()
}

#[test]
fn observations_keep_their_parts_and_types() {
    let Some(python) = python("observations_keep_their_parts_and_types") else {
        return;
    };
    let mut vector = vector(&python, &own("Everything"), 2, &json!({})).unwrap();
    // Gymnasium sorts the parts of a Dict only where they are given without an order.
    let parts = vec![
        ("picture".into(), Space::bytes(&[3, 6, 5], 255)),
        (
            "more".into(),
            Space::Dict(vec![
                ("0".into(), Space::Discrete { n: 3 }),
                (
                    "1".into(),
                    Space::MultiDiscrete {
                        choices: vec![2, 4],
                    },
                ),
            ]),
        ),
        ("flags".into(), Space::bytes(&[3], 1)),
        (
            "whole".into(),
            Space::Box {
                dtype: DType::F32,
                shape: vec![2],
                bounds: Bounds::Uniform {
                    low: -5.0,
                    high: 1000.0,
                },
            },
        ),
        ("seen_action".into(), Space::unbounded(&[4])),
    ];
    let Space::Dict(found) = vector.observation_space() else {
        panic!("it has parts");
    };
    for part in &parts {
        assert!(found.contains(part), "{part:?} is not in {found:?}");
    }
    assert_eq!(found.len(), parts.len());
    assert_eq!(*vector.action_space(), Space::Discrete { n: 4 });

    let mut rollout = rollout(&*vector, 2);
    vector.reset(&mut rollout).unwrap();
    rollout
        .actions
        .as_mut_slice::<i64>()
        .copy_from_slice(&[0, 3, 1, 2]);
    for t in 0..2 {
        vector.step(t, &mut rollout).unwrap();
    }
    // Channels first: pixel (row, column, channel) was row·15 + column·3 + channel.
    let picture = part(&rollout.obs, "picture").at(&[2, 1]);
    assert_eq!(picture.shape, [3, 6, 5]);
    for (i, byte) in picture.bytes.iter().enumerate() {
        let (channel, row, column) = (i / 30, i / 5 % 6, i % 5);
        assert_eq!(usize::from(*byte), row * 15 + column * 3 + channel);
    }
    // From −1 and from [1, 0] on.
    let choice = part(&rollout.obs, "more.0");
    assert_eq!(choice.as_slice::<i64>(), [0, 0, 1, 1, 2, 2]);
    let choices = part(&rollout.obs, "more.1");
    assert_eq!(
        choices.as_slice::<i64>(),
        [0, 0, 0, 0, 1, 1, 1, 1, 0, 2, 0, 2]
    );
    let flags = part(&rollout.obs, "flags");
    assert_eq!(flags.at(&[1]).bytes, [1, 0, 1, 1, 0, 1]);
    let whole = part(&rollout.obs, "whole");
    assert_eq!(whole.at(&[1, 0]).as_slice::<f32>(), [-5.0, 1000.0]);
    // Choices begin with 10.
    let seen = part(&rollout.obs, "seen_action");
    let seen = |t: usize, b: usize| seen.at(&[t, b]).as_slice::<f32>()[0];
    assert_eq!(
        [seen(1, 0), seen(1, 1), seen(2, 0), seen(2, 1)],
        [10.0, 13.0, 11.0, 12.0]
    );
    assert_eq!(rollout.rewards.as_slice::<f32>(), [0.5; 4]);
}

#[test]
fn actions_arrive_as_the_space_says() {
    let Some(python) = python("actions_arrive_as_the_space_says") else {
        return;
    };
    let choices = |choices: &[usize]| Space::MultiDiscrete {
        choices: choices.to_vec(),
    };
    for (action, space, given, seen) in [
        (
            "multi",
            choices(&[3, 4]),
            vec![2.0, 0.0],
            [3.0, 2.0, 0.0, 0.0],
        ),
        (
            "binary",
            choices(&[2, 2, 2]),
            vec![1.0, 0.0, 1.0],
            [1.0, 0.0, 1.0, 0.0],
        ),
        (
            "whole",
            choices(&[4, 4]),
            vec![0.0, 3.0],
            [5.0, 8.0, 0.0, 0.0],
        ),
        // Flattened by Gymnasium: one of two, and two flags.
        (
            "dict",
            choices(&[2, 2, 2]),
            vec![1.0, 0.0, 1.0],
            [0.0, 1.0, 0.0, 1.0],
        ),
        (
            "box",
            Space::vector(&[-2.0; 4], &[3.0; 4]),
            vec![-1.0, 0.0, 1.5, 3.0],
            [-1.0, 0.0, 1.5, 3.0],
        ),
        (
            "tuple",
            Space::vector(&[-1.0, 0.0, 0.0], &[1.0, 2.0, 2.0]),
            vec![0.5, 1.0, 2.0],
            [0.5, 1.0, 2.0, 0.0],
        ),
    ] {
        let settings = json!({"kwargs": {"action": action}});
        let mut vector = vector(&python, &own("Everything"), 1, &settings).unwrap();
        assert_eq!(*vector.action_space(), space, "{action}");
        let mut rollout = rollout(&*vector, 1);
        vector.reset(&mut rollout).unwrap();
        match rollout.actions.dtype() {
            DType::I64 => {
                let given: Vec<i64> = given.iter().map(|x: &f32| *x as i64).collect();
                rollout
                    .actions
                    .as_mut_slice::<i64>()
                    .copy_from_slice(&given);
            }
            _ => rollout
                .actions
                .as_mut_slice::<f32>()
                .copy_from_slice(&given),
        }
        // The environment itself checks that the action is in its space.
        vector.step(0, &mut rollout).unwrap();
        let found = part(&rollout.obs, "seen_action").at(&[1, 0]);
        assert_eq!(found.as_slice::<f32>(), seen, "{action}");
    }
}

#[test]
fn spaces_that_cannot_be_used_are_refused_with_advice() {
    let Some(python) = python("spaces_that_cannot_be_used_are_refused_with_advice") else {
        return;
    };
    let refused = |id: &str, settings| {
        let made = vector(&python, id, 1, &settings);
        made.err().unwrap().to_string()
    };
    for (what, says, advice) in [
        (
            "text",
            "part 'words' of its observations is a Text space",
            "env.leave_out",
        ),
        (
            "sequence",
            "its observation space is a Sequence space",
            "TransformObservation",
        ),
        (
            "mixed",
            "mixes discrete and continuous parts",
            "TransformAction",
        ),
        ("many", "integers from 0 to 100000", "wrap the environment"),
        (
            "text_action",
            "its action space is a Text space",
            "TransformAction",
        ),
    ] {
        let error = refused(&own("Unusable"), json!({"kwargs": {"what": what}}));
        assert!(error.contains(says) && error.contains(advice), "{error}");
    }
    for kind in ["Graph", "OneOf", "Sequence", "Text"] {
        for (place, says, advice) in [
            (
                "observation",
                "its observation space is a",
                "TransformObservation",
            ),
            (
                "observation part",
                "part 'odd' of its observations is a",
                "env.leave_out",
            ),
            ("action", "its action space is a", "TransformAction"),
            (
                "action part",
                "part 'odd' of its actions is a",
                "TransformAction",
            ),
        ] {
            let error = refused(
                &own("Odd"),
                json!({"kwargs": {"kind": kind, "place": place}}),
            );
            let says = format!("{says} {kind} space");
            assert!(error.contains(&says) && error.contains(advice), "{error}");
        }
        // The advice helps.
        let left_out =
            json!({"kwargs": {"kind": kind, "place": "observation part"}, "leave_out": ["odd"]});
        assert!(vector(&python, &own("Odd"), 1, &left_out).is_ok(), "{kind}");
    }
    let left_out = json!({"kwargs": {"what": "text"}, "leave_out": ["words", "nothing"]});
    let error = refused(&own("Unusable"), left_out);
    assert!(error.contains("env.leave_out names ['nothing']"), "{error}");
    for (id, says) in [
        ("python:somewhere", "should be python:MODULE:NAME"),
        ("python:./nowhere.py:Env", "there is no file"),
        (&*own("Nothing"), "has no 'Nothing'"),
        (&*own("NOT_CALLABLE"), "is not a class or function"),
        (
            &*own("action_is_nested"),
            "missing 1 required positional argument",
        ),
        (
            "python:no_such_module:Env",
            "No module named 'no_such_module'",
        ),
        ("gym:Nothing-v0", "name the package: gym:PACKAGE:ID"),
        ("gym:CartPole-v9", "doesn't exist"),
    ] {
        let error = refused(id, json!({}));
        assert!(error.contains(says), "{id}: {error}");
    }
    let error = refused("gym:CartPole-v1", json!({"kwargs": {"colour": "red"}}));
    assert!(
        error.contains("Traceback") && error.contains("'colour'"),
        "{error}"
    );
    let error = refused("gym:CartPole-v1", json!({"python": "/no/such/python"}));
    assert!(error.contains("/no/such/python cannot be run"), "{error}");
    assert!(error.contains("STARLING_PYTHON"), "{error}");
}

#[test]
fn legal_actions_come_from_info_or_observation() {
    let Some(python) = python("legal_actions_come_from_info_or_observation") else {
        return;
    };
    for place in ["info", "observation"] {
        let settings = json!({"kwargs": {"where": place}});
        let mut vector = vector(&python, &own("Masked"), 2, &settings).unwrap();
        assert_eq!(vector.legal_actions(), Some(2));
        let mut rollout = rollout(&*vector, 8);
        rollout.actions.as_mut_slice::<i64>().fill(1);
        vector.reset(&mut rollout).unwrap();
        for t in 0..8 {
            vector.step(t, &mut rollout).unwrap();
        }
        // The goal is reached, and the next episode begins, after four steps.
        let legal = rollout.legal.as_ref().unwrap();
        let legal = |t: usize| legal.at(&[t, 1]).bytes;
        let expected = [[0, 1], [1, 1], [1, 1], [1, 1], [0, 1], [1, 1]];
        for (t, expected) in expected.iter().enumerate() {
            assert_eq!(legal(t), expected, "{place}, row {t}");
        }
        assert_eq!(vector.finished().count(), 4);
    }
    let settings = json!({"action_masks": false});
    let vector = vector(&python, &own("Masked"), 2, &settings).unwrap();
    assert_eq!(vector.legal_actions(), None);
}

#[test]
fn a_picture_is_what_render_gives() {
    let Some(python) = python("a_picture_is_what_render_gives") else {
        return;
    };
    starling_python::add();
    let spec = starling_envs::registry::find(own("Walk").as_str()).unwrap();
    let options = crate::options(&python, &json!({}));
    let mut env = spec.make(&(spec.for_pictures)(&options)).unwrap();
    assert_eq!(env.render_fps(), 7.0);
    let mut obs = Tree::zeros(&env.observation_space().spec(), &[]);
    let mut rng = starling_envs::stream(1, "env", 0);
    fn row(obs: &mut Tree<Array>) -> starling_envs::ObsMut<'_> {
        starling_envs::ObsMut::at(obs, &[])
    }
    env.reset(&mut rng, row(&mut obs)).unwrap();
    for place in 1..=4 {
        let action = starling_envs::Action::Discrete(1);
        let step = env.step(action, &mut rng, row(&mut obs)).unwrap();
        // Also at the end of the episode it is the picture of that episode.
        assert_eq!(step.terminated, place == 4);
        let picture = env.render().unwrap();
        assert_eq!((picture.width, picture.height), (30, 20));
        assert_eq!(picture.pixel(place, 7), [255; 3]);
        assert_eq!(picture.pixel(place - 1, 7), [0; 3]);
    }
    let mut env = spec.make(&options).unwrap();
    env.reset(&mut rng, row(&mut obs)).unwrap();
    let error = env.render().unwrap_err().to_string();
    assert!(error.contains("env.render=true"), "{error}");
}

#[test]
fn limits_are_found_and_replaced() {
    let Some(python) = python("limits_are_found_and_replaced") else {
        return;
    };
    starling_python::add();
    let limit = |id: &str, settings| {
        let spec = starling_envs::registry::find(id).unwrap();
        spec.limit(&crate::options(&python, &settings)).unwrap()
    };
    assert_eq!(limit("gym:CartPole-v1", json!({})), Some(500));
    assert_eq!(
        limit("gym:CartPole-v1", json!({"max_episode_steps": 700})),
        Some(700)
    );
    assert_eq!(limit(&own("walk"), json!({})), Some(9));
    assert_eq!(limit(&own("Walk"), json!({})), None);
    for (settings, length) in [(json!({}), 9), (json!({"max_episode_steps": 12}), 12)] {
        let mut vector = vector(&python, &own("walk"), 1, &settings).unwrap();
        let mut rollout = rollout(&*vector, 30);
        vector.reset(&mut rollout).unwrap();
        for t in 0..30 {
            vector.step(t, &mut rollout).unwrap();
        }
        assert_eq!(vector.finished().next().unwrap().length, length);
        assert_eq!(rollout.truncated.as_slice::<u8>()[length as usize - 1], 1);
        assert!(
            rollout
                .terminated
                .as_slice::<u8>()
                .iter()
                .all(|end| *end == 0)
        );
    }
}
