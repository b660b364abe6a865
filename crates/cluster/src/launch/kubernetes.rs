//! Manifests for Kubernetes: a StatefulSet of the learners, a Deployment for each group of the others,
//! a Service, and a Secret with the join file.

use serde_json::{Value, json};

use super::program::quoted;
use super::{Kind, LaunchError, Plan, Role};
use crate::Identity;

/// The ports of a learner in its pod: for actors, and for other learners.
const PORT: u16 = 7777;
const GROUP_PORT: u16 = 7788;

/// How long a pod may take to end: the learner writes a checkpoint.
const GRACE_S: u32 = 120;

/// The manifests of a plan, as JSON documents, which are YAML too. The Secret has a new token and a new
/// certificate: anyone who can read it can join the run.
///
/// # Errors
/// When the plan makes no sense.
pub fn manifests(plan: &Plan) -> Result<Vec<Value>, LaunchError> {
    if plan.transport != "grpc" {
        let text = "--print kubernetes knows the transport grpc alone";
        return Err(LaunchError::Plan(text.into()));
    }
    let name = format!("starling-{}", dashed(&plan.name));
    let learner = format!("{name}-learner");
    let identity = Identity::new(!plan.insecure);
    let identity = identity.map_err(|error| LaunchError::Here(error.to_string()))?;
    let (learners, actors) = (plan.count_learners()?, plan.has_remote(Kind::Actor));
    let listens = actors || plan.has_remote(Kind::Evaluator);
    let file = |address: String| {
        let join = serde_json::to_string(&identity.join_file(address));
        join.map_err(|error| LaunchError::Here(error.to_string()))
    };
    // A pod of several has a name of its own.
    let pod = |number: &str| match learners {
        1 => learner.clone(),
        _ => format!("{learner}-{number}.{learner}"),
    };
    let mut secret = json!({});
    for number in 0..learners {
        let address = format!("{}:{PORT}", pod(&number.to_string()));
        secret[join_file(number)] = json!(file(address)?);
    }
    if learners > 1 {
        let address = format!("{}:{GROUP_PORT}", pod("0"));
        secret["learners.json"] = json!(file(address)?);
    }
    if let Some((_, key)) = &identity.tls {
        secret["join.key"] = json!(key);
    }
    let labels = |role: &str| json!({"app": name, "role": role});
    let train: Vec<String> = plan
        .train_arguments()?
        .iter()
        .map(|word| quoted(word))
        .collect();
    let insecure = match plan.insecure {
        true => " --insecure",
        false => "",
    };
    let listen = |number: &str| {
        let pod = pod(number);
        format!(" --listen 0.0.0.0:{PORT} --advertise \"{pod}\"{insecure}")
    };
    // A restarted pod resumes the run.
    let mut script = format!(
        "newest=$(ls -d runs/*/*/*/checkpoints/[0-9]* 2>/dev/null | tail -n 1); \
         if [ -n \"$newest\" ]; then set -- resume \"${{newest%/checkpoints/*}}\"; \
         else set -- {}; fi; \
         exec starling \"$@\" --quiet --identity /join",
        train.join(" ")
    );
    if listens {
        script += &listen("0");
    }
    if learners > 1 {
        script += &format!(" --learners-at 0.0.0.0:{GROUP_PORT}");
        let other = match actors {
            true => listen("$rank"),
            false => String::new(),
        };
        script = format!(
            "rank=${{HOSTNAME##*-}}; if [ \"$rank\" -gt 0 ]; then \
             exec starling learner --rank \"$rank\" --folder learner --join /join/learners.json \
             --identity /join{other}; fi; {script}"
        );
    }
    let kubernetes = &plan.kubernetes;
    let mut limits = json!({"memory": kubernetes.learner_memory});
    if kubernetes.learner_gpus > 0 {
        limits["nvidia.com/gpu"] = json!(kubernetes.learner_gpus);
    }
    let mut all = vec![
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": format!("{name}-join"), "labels": {"app": name}},
            "type": "Opaque",
            "stringData": secret,
        }),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": learner, "labels": {"app": name}},
            "spec": {
                "clusterIP": "None",
                "selector": labels("learner"),
                "ports": [
                    {"name": "grpc", "port": PORT},
                    {"name": "group", "port": GROUP_PORT},
                ],
                // Learners find each other before they are ready.
                "publishNotReadyAddresses": true,
            },
        }),
        json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": learner, "labels": labels("learner")},
            "spec": {
                "serviceName": learner,
                "replicas": learners,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels("learner")},
                "template": {
                    "metadata": {"labels": labels("learner")},
                    "spec": {
                        "terminationGracePeriodSeconds": GRACE_S,
                        "containers": [{
                            "name": "learner",
                            "image": kubernetes.image,
                            "workingDir": "/data",
                            "command": ["sh", "-c", script],
                            "ports": [{"name": "grpc", "containerPort": PORT}],
                            "startupProbe": {
                                "tcpSocket": {"port": "grpc"},
                                "periodSeconds": 5,
                                "failureThreshold": 60,
                            },
                            "livenessProbe": {
                                "tcpSocket": {"port": "grpc"},
                                "periodSeconds": 20,
                                "failureThreshold": 6,
                            },
                            "resources": {
                                "requests": {
                                    "cpu": kubernetes.learner_cpu,
                                    "memory": kubernetes.learner_memory,
                                },
                                "limits": limits,
                            },
                            "volumeMounts": [
                                {"name": "data", "mountPath": "/data"},
                                {"name": "join", "mountPath": "/join", "readOnly": true},
                            ],
                        }],
                        "volumes": [{
                            "name": "join",
                            "secret": {"secretName": format!("{name}-join"), "defaultMode": 0o400},
                        }],
                    },
                },
                "volumeClaimTemplates": [{
                    "metadata": {"name": "data"},
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": kubernetes.storage}},
                    },
                }],
            },
        }),
    ];
    if !actors {
        // Nothing listens in the pods of the other learners.
        let pod = &mut all[2]["spec"]["template"]["spec"]["containers"][0];
        if let Some(pod) = pod.as_object_mut() {
            pod.remove("startupProbe");
            pod.remove("livenessProbe");
        }
    }
    let mut groups: Vec<(Role, usize)> = Vec::new();
    for role in plan.roles()? {
        let same = |(one, _): &&mut (Role, usize)| {
            (&one.arguments, one.serves) == (&role.arguments, role.serves)
        };
        match groups.iter_mut().find(same) {
            Some((_, count)) => *count += 1,
            None if role.kind == Kind::Learner => {}
            None => groups.push((role, 1)),
        }
    }
    for (number, (one, count)) in groups.into_iter().enumerate() {
        let (kind, arguments, serves) = (one.kind, one.arguments, one.serves);
        let role = format!("{}-{number}", kind.name());
        let words: Vec<String> = std::iter::once("starling".to_owned())
            .chain(arguments)
            .collect();
        all.push(json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": format!("{name}-{role}"), "labels": labels(&role)},
            "spec": {
                "replicas": count,
                "selector": {"matchLabels": labels(&role)},
                "template": {
                    "metadata": {"labels": labels(&role)},
                    "spec": {
                        "terminationGracePeriodSeconds": GRACE_S,
                        "containers": [{
                            "name": kind.name(),
                            "image": kubernetes.image,
                            "command": words,
                            "env": [{
                                "name": "STARLING_JOIN",
                                "valueFrom": {"secretKeyRef": {
                                    "name": format!("{name}-join"),
                                    "key": join_file(serves),
                                }},
                            }],
                            "resources": {
                                "requests": {"cpu": kubernetes.cpu, "memory": kubernetes.memory},
                                "limits": {"memory": kubernetes.memory},
                            },
                        }],
                    },
                },
            },
        }));
    }
    if let Some(namespace) = &kubernetes.namespace {
        for one in &mut all {
            one["metadata"]["namespace"] = json!(namespace);
        }
    }
    Ok(all)
}

/// The key of the Secret with the join file for actors of a learner.
fn join_file(learner: usize) -> String {
    match learner {
        0 => "join.json".to_owned(),
        learner => format!("join-{learner}.json"),
    }
}

/// A name as Kubernetes takes it.
fn dashed(name: &str) -> String {
    let plain = |c: char| match c.is_ascii_alphanumeric() {
        true => c.to_ascii_lowercase(),
        false => '-',
    };
    let name: String = name.chars().take(30).map(plain).collect();
    match name.trim_matches('-') {
        "" => "run".into(),
        name => name.to_owned(),
    }
}
