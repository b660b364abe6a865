//! Every measurement of `starling bench`: `cargo bench`, or `cargo bench -- envs`.

fn main() -> Result<(), starling::bench::BenchError> {
    let out = &mut std::io::stdout();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let named: Vec<&String> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    let wanted = |name: &str| named.is_empty() || named.iter().any(|arg| *arg == name);
    if wanted("envs") {
        starling::bench::envs("", out)?;
    }
    if wanted("replay") {
        starling::bench::replay(None, false, out)?;
    }
    if wanted("collect") {
        starling::bench::collect(out)?;
    }
    Ok(())
}
