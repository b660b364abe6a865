//! Every setting of every run, environment and algorithm is described, and its range holds.

use serde_json::{Map, Value, json};
use starling_algos::Spaces;
use starling_engine::RunConfig;
use starling_envs::{EnvOptions, Space};
use starling_settings::{Form, Setting};

use super::{Question, explain, kinds, schema};

/// All settings, by who has them.
fn owned() -> Vec<(String, Vec<Setting>)> {
    let mut owned = vec![("run".to_owned(), RunConfig::run_settings())];
    for (_, env) in kinds() {
        owned.push((env.id.to_owned(), env.schema().settings("env")));
    }
    for algo in starling_algos::registry::all() {
        owned.push((algo.name.to_owned(), algo.schema().settings("algo")));
    }
    owned
}

#[test]
fn every_setting_has_words_a_form_and_a_range() {
    for (owner, settings) in owned() {
        for setting in settings {
            let name = format!("{owner}: {setting:?}");
            assert!(!setting.words.is_empty(), "{name}");
            assert!(!setting.forms.is_empty(), "{name}");
            assert!(!setting.default.is_null() || setting.nullable, "{name}");
            let described = !setting.range.is_open() || setting.range.unbounded;
            assert_eq!(described, setting.is_numeric(), "{name}");
            for choice in setting.choices() {
                assert!(!choice.words.is_empty(), "{name}");
            }
        }
    }
}

/// Numbers just outside of a range.
fn outside(setting: &Setting) -> Vec<Value> {
    let range = setting.range;
    let whole = setting.forms.iter().any(|form| match form {
        Form::List(items) => **items == Form::Integer,
        form => *form == Form::Integer,
    });
    let number = |value: f64| match whole {
        true => json!(value as i64),
        false => json!(value),
    };
    let step = |at: f64| if whole { 1.0 } else { at.abs().max(1.0) * 1e-9 };
    let wrong = [
        range.minimum.map(|low| low - step(low)),
        range.exclusive_minimum,
        range.maximum.map(|high| high + step(high)),
        range.exclusive_maximum,
    ];
    let wrong = wrong.into_iter().flatten().map(number);
    let listed = matches!(setting.forms.as_slice(), [.., Form::List(_)]);
    let scheduled = setting
        .forms
        .iter()
        .any(|form| matches!(form, Form::Table(_)));
    wrong
        .flat_map(|wrong| match (listed, scheduled) {
            (true, _) => vec![json!([wrong])],
            (_, true) => vec![json!({"start": wrong, "end": 0.5}), wrong],
            _ => vec![wrong],
        })
        .collect()
}

/// One setting as a tree.
fn tree(key: &str, value: Value) -> Value {
    key.rsplit('.').fold(value, |inside, name| {
        let mut table = Map::new();
        table.insert(name.to_owned(), inside);
        Value::Object(table)
    })
}

#[test]
fn a_number_just_outside_of_its_range_is_refused_by_name() {
    let spaces = Spaces {
        observation: Space::unbounded(&[4]),
        action: Space::Discrete { n: 2 },
        legal_actions: None,
        frame_stack: None,
    };
    let mut refused = 0;
    for (owner, settings) in owned() {
        for setting in settings {
            for wrong in outside(&setting) {
                let given = tree(&setting.key, wrong.clone());
                let message = if let Ok(algo) = starling_algos::registry::find(&owner) {
                    let built = algo.build(&given["algo"], &spaces);
                    built.err().map(|error| error.to_string())
                } else if let Ok(env) = starling_envs::registry::find(&owner) {
                    let options = EnvOptions::from_table(&given["env"]);
                    let made = options.map_err(Into::into).and_then(|it| env.make(&it));
                    made.err().map(|error| error.to_string())
                } else {
                    let mut given = given;
                    crate::settings::merge(
                        &mut given,
                        &json!({"env": {"id": "CartPole-v1"}, "algo": {"name": "ppo"}}),
                    );
                    let config = RunConfig::from_value(&given);
                    config.err().map(|error| error.to_string())
                };
                let message = message.unwrap_or_default();
                let named = message.starts_with(&setting.key);
                assert!(
                    named && message.contains("; allowed: "),
                    "{owner}: {wrong} for {setting:?}: {message}"
                );
                refused += 1;
            }
        }
    }
    assert!(refused > 1000, "only {refused}");
}

#[test]
fn defaults_are_in_range() {
    for algo in starling_algos::registry::all() {
        let schema = algo.schema();
        schema.check_ranges("algo", schema.defaults()).unwrap();
        // Sections that are null by default have defaults too.
        for setting in schema.settings("algo") {
            let given = tree(&setting.key, setting.default.clone());
            schema.check_ranges("algo", &given["algo"]).unwrap();
        }
    }
}

fn explained(key: &str, env: Option<&str>, algo: Option<&str>) -> String {
    let question = Question {
        key: Some(key.to_owned()),
        env: env.map(str::to_owned),
        algo: algo.map(str::to_owned),
    };
    match explain(&question) {
        Ok(text) => text,
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_number_is_explained() {
    let expected = "\
algo.gamma
  Discount per step (γ).

  type       float
  range      between 0 and 1
  default    0.99; 0.997 for apex-dqn, apex-rainbow, apex-rainbow-iqn, ngu, r2d2
";
    assert_eq!(explained("algo.gamma", None, None), expected);
    let expected = "\
algo.ratio_clip
  How far the probability ratio may move, possibly a schedule.

  type       float or {start, end, by}
               start  Value at the beginning.
               end    Value from `by` on.
               by     Fraction of the run at which `end` is reached.
  range      between 0 and 10
  default    {start: 0.1, end: 0.0, by: 1.0}
  elsewhere  clip_coef, clip_eps, clip_range
";
    assert_eq!(explained("clip-range", None, Some("ppo")), expected);
    let expected = "\
algo.n_steps
  Steps of reward before the bootstrap (n).

  type       integer
  unit       steps
  range      at least 1
  default    3
  value      3 for CartPole-v1 with preset classic/apex-dqn
";
    let text = explained("N-Steps", Some("CartPole-v1"), Some("apex-dqn"));
    assert_eq!(text, expected);
}

#[test]
fn a_choice_is_explained_by_its_names() {
    let expected = "\
on_env_error
  What happens when an environment reports an error. A panic is the loss of an
  actor.

  type       one of
               stop     The run ends with the reason.
               restart  The episode is cut off, and the environment is
                        restarted.
  default    stop
";
    assert_eq!(explained("on_env_error", None, None), expected);
}

#[test]
fn a_section_is_explained_with_what_is_in_it() {
    let expected = "\
algo.epsilon_spread
  ε decays to a different value in each environment (rlpyt), instead of
  `epsilon_end`.

  type       section or null
  default    null

algo.epsilon_spread.low   ε of the first environment.
algo.epsilon_spread.high  ε of the last environment.
";
    assert_eq!(explained("epsilon_spread", None, Some("dqn")), expected);
}

#[test]
fn names_of_other_libraries_and_misspelt_ones_are_recognised() {
    let rate = explained("lr", None, Some("sac"));
    assert!(rate.starts_with("algo.learning_rate\n"), "{rate}");
    assert!(rate.ends_with("  elsewhere  lr\n"), "{rate}");
    assert_eq!(
        explained("algo.gamm", None, None),
        "there is no setting called 'algo.gamm'; did you mean algo.gamma?"
    );
    assert_eq!(
        explained("atoms", Some("CartPole-v1"), None),
        "CartPole-v1 with ppo has no setting called 'atoms', but these have: apex-rainbow, c51, \
         epsilon-rainbow, rainbow"
    );
    assert_eq!(
        explained("xyzzy", None, None),
        "there is no setting called 'xyzzy'; `starling config explain` lists all"
    );
}

#[test]
fn lines_have_at_most_80_columns() {
    let all = explain(&Question::default()).unwrap();
    assert!(
        all.contains("\nalgo.gamma ") && all.contains("\nenv.frame_skip "),
        "{all}"
    );
    assert!(all.lines().all(|line| line.chars().count() <= 80), "{all}");
    let keys = all.lines().filter_map(|line| line.split(' ').next());
    for key in keys {
        let text = explained(key, None, None);
        assert!(text.starts_with(key), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
    // A whole environment.
    let pong = explained("ALE/Pong-v5", None, None);
    assert!(
        pong.contains("env.frame_skip ") && pong.contains("algo.epochs "),
        "{pong}"
    );
    assert!(!pong.contains("algo.capacity_steps"), "{pong}");
}

#[test]
fn the_schema_for_tools_has_every_setting() {
    let schema = schema();
    let find = |settings: &Value, key: &str| {
        let mut settings = settings.as_array().unwrap().iter();
        settings
            .find(|setting| setting["key"] == key)
            .unwrap()
            .clone()
    };
    let gamma = find(&schema["algo"]["r2d2"], "algo.gamma");
    assert_eq!(
        gamma,
        json!({
            "key": "algo.gamma", "words": "Discount per step (γ).", "forms": ["float"],
            "nullable": false, "unit": null, "range": {"minimum": 0.0, "maximum": 1.0},
            "default": 0.997, "type": "float", "allowed": "between 0 and 1", "other_names": [],
        })
    );
    assert_eq!(find(&schema["run"], "stall_timeout_s")["unit"], "seconds");
    let skip = find(&schema["env"]["atari"], "env.frame_skip");
    assert_eq!(skip["type"], "integer or null");
    // The tasks of MuJoCo differ in their settings.
    assert!(schema["env"].get("mujoco").is_none());
    let body = find(&schema["env"]["Ant-v5"], "env.main_body");
    assert_eq!(body["type"], "integer or text");
    let heights = find(&schema["env"]["Hopper-v4"], "env.healthy_z_range");
    assert_eq!(heights["type"], "list of floats");
    assert_eq!(heights["allowed"], "any finite numbers");
    assert_eq!(heights["default"], json!([0.7, null]));
}
