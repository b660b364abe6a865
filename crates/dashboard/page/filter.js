// The filter box: words that all have to fit.
//
//   pong            somewhere in the environment, algorithm or name
//   env:Pong        part of a text      -env:Pong    not
//   seed=3          equal               steps>1e6    <, >, <=, >=
//   algo.learning_rate>1e-4             any setting, by its dotted name or the end of it

const OWN = {
  env: run => run.env, algo: run => run.algo, name: run => run.name, seed: run => run.seed,
  state: run => run.state, steps: run => run.steps, return: run => run.return,
  speed: run => run.speed, episodes: run => run.episodes, id: run => run.id,
};

function valueOf(run, key) {
  if (Object.hasOwn(OWN, key)) return OWN[key](run);
  const settings = run.settings ?? {};
  if (Object.hasOwn(settings, key)) return settings[key];
  // A schedule counts with its first value.
  if (Object.hasOwn(settings, key + ".start")) return settings[key + ".start"];
  if (key.includes(".")) return undefined;
  const found = Object.keys(settings).filter(name => name.endsWith("." + key));
  return found.length === 1 ? settings[found[0]] : undefined;
}

function text(value) {
  return typeof value === "object" && value !== null ? JSON.stringify(value) : String(value);
}

function test(word) {
  const negative = word.startsWith("-") && word.length > 1;
  if (negative) {
    const inner = test(word.slice(1));
    return run => !inner(run);
  }
  const parts = /^([\w./-]+?)(>=|<=|:|=|>|<)(.*)$/.exec(word);
  if (!parts) {
    const wanted = word.toLowerCase();
    return run => `${run.env} ${run.algo} ${run.name}`.toLowerCase().includes(wanted);
  }
  const [, key, operator, wanted] = parts;
  if (operator === ":") {
    const lower = wanted.toLowerCase();
    return run => {
      const value = valueOf(run, key);
      return value !== undefined && text(value).toLowerCase().includes(lower);
    };
  }
  if (operator === "=") {
    return run => {
      const value = valueOf(run, key);
      if (value === undefined) return false;
      return text(value) === wanted || (wanted !== "" && Number(value) === Number(wanted));
    };
  }
  const limit = Number(wanted);
  if (wanted === "" || Number.isNaN(limit)) throw new Error(`${word}: a number is needed after ${operator}`);
  const compare = {
    ">": value => value > limit, "<": value => value < limit,
    ">=": value => value >= limit, "<=": value => value <= limit,
  }[operator];
  return run => {
    const value = valueOf(run, key);
    return typeof value === "number" && compare(value);
  };
}

// A function of a run, or an error that says what is wrong with the text.
export function compile(line) {
  const tests = line.split(/\s+/).filter(Boolean).map(test);
  return run => tests.every(fits => fits(run));
}
