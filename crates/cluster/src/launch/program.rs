//! Commands on hosts, and the program that they need.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use twox_hash::XxHash3_64;

use super::{Host, LaunchError, Plan};

/// The program on a host, ready to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Installed {
    program: String,
    /// The folder of libtorch's libraries, if the program does not find them by itself.
    libtorch: Option<String>,
}

/// The program of this process, and what it takes to run it elsewhere.
pub(super) struct Program {
    path: PathBuf,
    /// Names its content.
    hash: String,
    bytes: u64,
    /// The folder from which this process has libtorch.
    libtorch: Option<PathBuf>,
}

/// Below the home folder of a host.
const CACHE: &str = ".cache/starling/launch";

impl Program {
    /// That of this process.
    pub(super) fn own() -> Result<Self, LaunchError> {
        let here = |error: &dyn std::fmt::Display| {
            LaunchError::Here(format!("the own program cannot be read: {error}"))
        };
        let path = std::env::current_exe().map_err(|error| here(&error))?;
        let content = std::fs::read(&path).map_err(|error| here(&error))?;
        let hash = format!("{:016x}", XxHash3_64::oneshot(&content));
        let bytes = content.len() as u64;
        Ok(Self {
            path,
            hash,
            bytes,
            libtorch: loaded_from("/libtorch_cpu.so"),
        })
    }

    /// Copies it to a host, unless it is there already. `say` reports slow steps.
    pub(super) fn install(
        &self,
        plan: &Plan,
        host: &Host,
        say: &dyn Fn(&str),
    ) -> Result<Installed, LaunchError> {
        if *host == Host::Local {
            return Ok(Installed {
                program: self.path.display().to_string(),
                libtorch: self
                    .libtorch
                    .as_ref()
                    .map(|path| path.display().to_string()),
            });
        }
        let program = match &plan.program {
            Some(program) => program.clone(),
            None => self.copy(plan, host, say)?,
        };
        let libtorch = match &plan.libtorch {
            Some(folder) => Some(folder.clone()),
            None => self.copy_libtorch(plan, host, say)?,
        };
        Ok(Installed { program, libtorch })
    }

    fn copy(&self, plan: &Plan, host: &Host, say: &dyn Fn(&str)) -> Result<String, LaunchError> {
        let folder = format!("$HOME/{CACHE}/{}", self.hash);
        let path = format!("{folder}/starling");
        if is_there(plan, host, &format!("test -x \"{path}\""))? {
            return Ok(path);
        }
        say("copying the program");
        // A broken connection must not leave a partial file.
        let (bytes, partial) = (self.bytes, format!("{folder}/.partial-$$"));
        let script = format!(
            "umask 077 && mkdir -p \"{folder}\" && cat > \"{partial}\" && \
             test \"$(wc -c < \"{partial}\")\" -eq {bytes} && chmod 700 \"{partial}\" && \
             mv -f \"{partial}\" \"{path}\""
        );
        let file = File::open(&self.path);
        let file = file.map_err(|error| LaunchError::Here(error.to_string()))?;
        let mut command = ssh(plan, host, &script);
        finish(host, command.stdin(file).output())?;
        Ok(path)
    }

    fn copy_libtorch(
        &self,
        plan: &Plan,
        host: &Host,
        say: &dyn Fn(&str),
    ) -> Result<Option<String>, LaunchError> {
        let Some(from) = &self.libtorch else {
            return Ok(None);
        };
        let folder = format!("$HOME/{CACHE}/libtorch-{}", signature(from)?);
        if !is_there(plan, host, &format!("test -d \"{folder}\""))? {
            say("copying libtorch (once)");
            send_folder(plan, host, from, &folder)?;
        }
        Ok(Some(folder))
    }
}

/// Copies the files of a folder to a host, all or nothing.
pub(super) fn send_folder(
    plan: &Plan,
    host: &Host,
    from: &Path,
    to: &str,
) -> Result<(), LaunchError> {
    let here = |error: std::io::Error| LaunchError::Here(format!("tar: {error}"));
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(from).args(["-h", "-cf", "-", "."]);
    let mut tar = tar.stdout(Stdio::piped()).spawn().map_err(here)?;
    let script = format!(
        "umask 077 && mkdir -p \"{to}.partial-$$\" && tar -xf - -C \"{to}.partial-$$\" && \
         {{ test -d \"{to}\" || mv \"{to}.partial-$$\" \"{to}\"; }}"
    );
    let mut command = ssh(plan, host, &script);
    if let Some(packed) = tar.stdout.take() {
        command.stdin(packed);
    }
    let sent = command.output();
    let packed = tar.wait().map_err(here)?;
    finish(host, sent)?;
    match packed.success() {
        true => Ok(()),
        false => Err(LaunchError::Here(format!(
            "tar cannot read {}",
            from.display()
        ))),
    }
}

/// Names and sizes of the files of a folder, as one number.
fn signature(folder: &Path) -> Result<String, LaunchError> {
    let here = |error: std::io::Error| LaunchError::Here(format!("{}: {error}", folder.display()));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(here)? {
        let path = entry.map_err(here)?.path();
        let bytes = std::fs::metadata(&path).map_or(0, |data| data.len());
        files.push(format!("{:?} {bytes}", path.file_name()));
    }
    files.sort();
    let hash = XxHash3_64::oneshot(files.join("\n").as_bytes());
    Ok(format!("{hash:016x}"))
}

/// The folder from which this process has loaded a library.
fn loaded_from(library: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with(library))?;
    let path = &line[line.find('/')?..];
    Some(Path::new(path).parent()?.to_owned())
}

fn is_there(plan: &Plan, host: &Host, test: &str) -> Result<bool, LaunchError> {
    let mut command = ssh(plan, host, &format!("{test} && echo yes || echo no"));
    let output = finish(host, command.stdin(Stdio::null()).output())?;
    Ok(String::from_utf8_lossy(&output.stdout).trim() == "yes")
}

fn finish(host: &Host, done: std::io::Result<Output>) -> Result<Output, LaunchError> {
    let failed = |reason: String| LaunchError::Prepare {
        host: host.to_string(),
        reason,
    };
    let output = done.map_err(|error| failed(format!("ssh: {error}")))?;
    match output.status.success() {
        true => Ok(output),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(failed(format!("{} ({})", said.trim(), output.status)))
        }
    }
}

/// A command of a shell on a host.
pub(super) fn ssh(plan: &Plan, host: &Host, script: &str) -> Command {
    let mut command = Command::new("ssh");
    // No password prompts; keep-alive detects a lost machine.
    for option in [
        "BatchMode=yes",
        "ConnectTimeout=10",
        "ServerAliveInterval=5",
        "ServerAliveCountMax=3",
    ] {
        command.args(["-o", option]);
    }
    command.args(&plan.ssh);
    if let Host::Ssh { destination, port } = host {
        if let Some(port) = port {
            command.args(["-p", &port.to_string()]);
        }
        command.args(["--", destination]);
    }
    command.arg(script);
    command
}

/// A command that runs the program with these arguments on a host.
pub(super) fn start(
    plan: &Plan,
    host: &Host,
    installed: &Installed,
    arguments: &[String],
) -> Command {
    if *host == Host::Local {
        let mut command = Command::new(&installed.program);
        command.args(arguments);
        return command;
    }
    let folder = quoted(&plan.folder);
    let mut script = format!("cd \"$HOME\" && mkdir -p {folder} && cd {folder} && exec env ");
    if let Some(libtorch) = &installed.libtorch {
        // It may begin with $HOME, which the shell replaces.
        script += &format!("LD_LIBRARY_PATH=\"{libtorch}\" ");
    }
    script += &format!("\"{}\"", installed.program);
    for argument in arguments {
        script += " ";
        script += &quoted(argument);
    }
    ssh(plan, host, &script)
}

/// Whether a run has a checkpoint to continue from.
///
/// # Errors
/// When the host cannot be asked: that must not look like a run without a checkpoint, which would be
/// started from the beginning.
pub(super) fn has_checkpoint(plan: &Plan, host: &Host, run: &str) -> Result<bool, LaunchError> {
    let checkpoints = format!("{run}/checkpoints");
    if *host == Host::Local {
        let entries = std::fs::read_dir(checkpoints).into_iter().flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        return Ok(names.into_iter().any(|name| {
            let name = name.to_string_lossy();
            name.bytes().all(|byte| byte.is_ascii_digit())
        }));
    }
    let (folder, path) = (quoted(&plan.folder), quoted(&checkpoints));
    is_there(
        plan,
        host,
        &format!("cd \"$HOME\" && cd {folder} && ls {path} | grep -q '^[0-9][0-9]*$'"),
    )
}

/// A word as a POSIX shell takes it.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}
