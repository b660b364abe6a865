//! Suggestions for unknown ids.

use super::all;

/// The end of the message about an unknown id.
pub(super) fn hint(id: &str, nearest: &[&str]) -> String {
    match nearest {
        _ if is_of_gymnasium(id) => {
            format!("; Gymnasium's own, in Python, is 'gym:{id}' (see the chapter on Python)")
        }
        [] => "; `starling list envs` lists all environments".to_owned(),
        [one] => format!("; did you mean '{one}'?"),
        several => format!("; did you mean one of '{}'?", several.join("', '")),
    }
}

/// Whether Gymnasium has an environment of this name, in any version, that is not in the table.
fn is_of_gymnasium(id: &str) -> bool {
    let name = plain(unversioned(id.rsplit('/').next().unwrap_or(id)));
    NOT_INCLUDED.iter().any(|known| plain(known) == name)
}

/// Gymnasium's environments that are not in the table. Those of MuJoCo are, once their crate has added
/// them.
const NOT_INCLUDED: [&str; 10] = [
    "BipedalWalker",
    "BipedalWalkerHardcore",
    "CarRacing",
    "CliffWalking",
    "CliffWalkingSlippery",
    "FrozenLake",
    "FrozenLake8x8",
    "LunarLander",
    "LunarLanderContinuous",
    "Taxi",
];

/// Similar ids: those that differ only in case, punctuation or version, else up to three with a
/// similar spelling.
pub(super) fn nearest(id: &str) -> Vec<&'static str> {
    let wanted = plain(id);
    if wanted.is_empty() || is_of_gymnasium(id) {
        return Vec::new();
    }
    let mut scored: Vec<(f64, &'static str)> = Vec::new();
    for spec in all() {
        let full = plain(spec.id);
        let name = plain(unversioned(spec.id));
        let last = plain(unversioned(spec.id.rsplit('/').next().unwrap_or(spec.id)));
        let alike = if wanted == full {
            3.0
        } else if plain(unversioned(id)) == name || plain(unversioned(id)) == last {
            2.0
        } else {
            [&full, &name, &last]
                .map(|candidate| strsim::normalized_damerau_levenshtein(&wanted, candidate))
                .into_iter()
                .fold(0.0, f64::max)
        };
        scored.push((alike, spec.id));
    }
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let best = scored.first().map_or(0.0, |(alike, _)| *alike);
    let floor = if best >= 2.0 { best } else { 0.6 };
    let near = scored.iter().filter(|(alike, _)| *alike >= floor);
    near.take(3).map(|(_, id)| *id).collect()
}

/// Lower case, without punctuation.
fn plain(id: &str) -> String {
    id.chars()
        .filter(|c| c.is_alphanumeric())
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

/// An id without its `-v1`.
fn unversioned(id: &str) -> &str {
    match id.rsplit_once(['-', '_']) {
        Some((name, version))
            if version.len() > 1
                && version.starts_with(['v', 'V'])
                && version[1..].bytes().all(|b| b.is_ascii_digit()) =>
        {
            name
        }
        _ => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EnvSpec;
    use crate::registry::find;

    #[test]
    fn unknown_ids_name_the_nearest() {
        let nearest = |id: &str| find(id).unwrap_err().nearest;
        assert_eq!(nearest("cartpole-v1"), ["CartPole-v1"]);
        assert_eq!(nearest("CartPole-v0"), ["CartPole-v1"]);
        assert_eq!(nearest("CartPole"), ["CartPole-v1"]);
        assert_eq!(nearest("CratPole-v1")[0], "CartPole-v1");
        assert_eq!(
            nearest("breakout"),
            [
                "MinAtar/Breakout-v1",
                "MinAtar/Breakout-v0",
                "ALE/Breakout-v5"
            ]
        );
        assert_eq!(nearest("ale/pong-v5"), ["ALE/Pong-v5"]);
        assert_eq!(
            nearest("ALE/MontezumasRevenge-v5")[0],
            "ALE/MontezumaRevenge-v5"
        );
        assert_eq!(nearest("minatar/breakout-v1"), ["MinAtar/Breakout-v1"]);
        assert_eq!(nearest("MinAtar/Freway-v1")[0], "MinAtar/Freeway-v1");
        assert_eq!(nearest("xyzzy"), [""; 0]);
        assert_eq!(nearest(""), [""; 0]);
        let error = find("cartpole-v1").unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no environment called 'cartpole-v1'; did you mean 'CartPole-v1'?"
        );
    }

    #[test]
    fn other_environments_of_gymnasium_are_named_as_such() {
        for id in ["LunarLander-v2", "CarRacing-v3", "taxi"] {
            let error = find(id).unwrap_err();
            assert_eq!(error.nearest, [""; 0], "{id}");
            assert_eq!(
                error.to_string(),
                format!(
                    "there is no environment called '{id}'; Gymnasium's own, in Python, is \
                     'gym:{id}' (see the chapter on Python)"
                )
            );
        }
        assert_eq!(
            find("xyzzy").unwrap_err().to_string(),
            "there is no environment called 'xyzzy'; `starling list envs` lists all environments"
        );
        for name in NOT_INCLUDED {
            let known = |spec: &&EnvSpec| plain(unversioned(spec.id)) == plain(name);
            assert!(!all().iter().any(known), "{name} is included");
        }
    }
}
