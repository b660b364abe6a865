//! A script for Slurm: one job, a step for each learner and one for each group of the others.

use super::program::quoted;
use super::{Kind, LaunchError, Plan};

/// The script of a plan. `program` is its path on the nodes. Hosts of the plan are not used: Slurm
/// decides where processes run.
///
/// # Errors
/// When the plan makes no sense.
pub fn script(plan: &Plan, program: &str) -> Result<String, LaunchError> {
    let (slurm, roles) = (&plan.slurm, plan.roles()?);
    let train: Vec<String> = plan
        .train_arguments()?
        .iter()
        .map(|word| quoted(word))
        .collect();
    let (program, tasks) = (quoted(program), roles.len());
    let mut text = format!(
        "#!/bin/bash\n\
         #SBATCH --job-name=starling-{}\n\
         #SBATCH --nodes={}\n\
         #SBATCH --ntasks={tasks}\n\
         #SBATCH --cpus-per-task={}\n\
         #SBATCH --requeue\n\
         #SBATCH --open-mode=append\n\
         #SBATCH --signal=TERM@120\n",
        plan.name, slurm.nodes, slurm.cpus_per_task
    );
    if let Some(time) = &slurm.time {
        text += &format!("#SBATCH --time={time}\n");
    }
    if let Some(partition) = &slurm.partition {
        text += &format!("#SBATCH --partition={partition}\n");
    }
    for option in &slurm.options {
        text += &format!("#SBATCH {option}\n");
    }
    let listen = match plan.transport.as_str() {
        "grpc" => {
            let listen = plan.learner.listen.as_deref().unwrap_or("0.0.0.0:7777");
            let advertise = plan.learner.advertise.as_deref().map(quoted);
            let advertise = advertise.unwrap_or_else(|| "\"$head\"".into());
            format!("--listen {} --advertise {advertise}", quoted(listen))
        }
        redis => {
            let advertise = plan.learner.advertise.as_deref();
            let advertise = advertise.map(|host| format!(" --advertise {}", quoted(host)));
            let advertise = advertise.unwrap_or_default();
            format!("--listen {}{advertise}", quoted(redis))
        }
    };
    let insecure = match plan.insecure {
        true => " --insecure",
        false => "",
    };
    let (learners, actors) = (plan.count_learners()?, plan.has_remote(Kind::Actor));
    let mut first = String::new();
    if learners > 1 {
        let at = plan.learner.learners_at.as_deref();
        let at = quoted(at.unwrap_or("0.0.0.0:7788"));
        first += &format!(" --learners-at {at} --learners-file \"$runs/learners.json\"");
    }
    let waits = actors || plan.has_remote(Kind::Evaluator);
    if waits {
        first += &format!(" {listen}{insecure} --join-file \"$join\"");
    }
    let file = if waits {
        "$join"
    } else {
        "$runs/learners.json"
    };
    text += &format!(
        "set -u\n\
         cd \"$SLURM_SUBMIT_DIR\"\n\
         # A folder that all nodes see; a job that is requeued continues the run in it.\n\
         runs=starling-$SLURM_JOB_ID\n\
         mkdir -p \"$runs\"\n\
         join=$runs/join.json\n\
         rm -f \"$join\" \"$join\".* \"$runs/learners.json\"\n\
         head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n\
         newest=$(ls -d \"$runs\"/*/*/*/checkpoints/[0-9]* 2>/dev/null | tail -n 1)\n\
         if [ -n \"$newest\" ]; then\n    \
             set -- resume \"${{newest%/checkpoints/*}}\"\n\
         else\n    \
             set -- {} --runs \"$runs\"\n\
         fi\n\
         srun --nodes=1 --ntasks=1 --exact --nodelist=\"$head\" \\\n    \
             {program} \"$@\" --quiet{first} &\n\
         learner=$!\n\
         others=\n\
         await() {{ while [ ! -s \"$1\" ] && kill -0 \"$learner\" 2>/dev/null; do sleep 1; done; }}\n\
         await \"{file}\"\n",
        train.join(" ")
    );
    // Each of the other learners has its own folder, and its own actors.
    for role in roles.iter().filter(|role| role.kind == Kind::Learner) {
        let rank = role.number;
        if role.leads() {
            continue;
        }
        let words: Vec<String> = role.arguments.iter().map(|word| quoted(word)).collect();
        let mut words = words.join(" ");
        if actors {
            words += &match plan.transport.as_str() {
                "grpc" => {
                    let listen = plan.learner.listen.as_deref().unwrap_or("0.0.0.0:7777");
                    let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host);
                    format!(" --listen {}", quoted(&format!("{host}:0")))
                }
                _ => format!(" {listen}"),
            };
            words += &format!("{insecure} --join-file \"$join.{rank}\"");
        }
        text += &format!(
            "await \"$runs/learners.json\"\n\
             srun --nodes=1 --ntasks=1 --exact --kill-on-bad-exit=0 \\\n    \
             {program} {words} --folder \"$runs/learner-{rank}\" --join \"$runs/learners.json\" &\n\
             others=\"$others $!\"\n"
        );
    }
    // Roles with the same arguments share a step.
    let mut groups: Vec<(Vec<String>, usize, usize)> = Vec::new();
    for role in roles.iter().filter(|role| role.kind != Kind::Learner) {
        let same = |(words, serves, _): &&mut (Vec<String>, usize, usize)| {
            *words == role.arguments && *serves == role.serves
        };
        match groups.iter_mut().find(same) {
            Some((.., count)) => *count += 1,
            None => groups.push((role.arguments.clone(), role.serves, 1)),
        }
    }
    for (words, serves, count) in groups {
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let (mut await_it, mut file) = (String::new(), "$join".to_owned());
        if serves > 0 {
            file = format!("$join.{serves}");
            await_it = format!("await \"{file}\"\n");
        }
        text += &format!(
            "{await_it}srun --ntasks={count} --exact --kill-on-bad-exit=0 \\\n    \
             {program} {} --join \"{file}\" &\n\
             others=\"$others $!\"\n",
            words.join(" ")
        );
    }
    // The others are told when the run ends; those that have not joined are killed.
    text += "wait \"$learner\"\n\
             status=$?\n\
             for _ in 1 2 3 4 5 6 7 8 9 10; do\n    \
                 [ -n \"$(jobs -r)\" ] || break\n    \
                 sleep 1\n\
             done\n\
             kill $others 2>/dev/null\n\
             wait\n\
             exit \"$status\"\n";
    Ok(text)
}
