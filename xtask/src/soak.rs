//! `cargo xtask soak`: sequences that share an engine for many thousands of steps, and the cache of
//! packed weights with killed processes and full disks. Whatever happens to the cache, the next
//! start must write the same text as without it, and nothing may be left behind.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::command::{self, Result, build_troika, cargo, failed};

/// Share engines between many sequences at random, kill the command while it writes its cache of
/// packed weights, and fill its disk
#[derive(clap::Args)]
pub struct Options {
    /// Times that two processes at once are killed
    #[arg(long, value_name = "N", default_value_t = 200)]
    kills: u64,
    /// Sizes of the full disk: from one step up until everything fits; 0: none. Needs the right to
    /// mount (root) and Linux's unshare
    #[arg(long, value_name = "KIB", default_value_t = 64)]
    step: u64,
    /// End after so many minutes, whatever is left
    #[arg(long, value_name = "N", default_value_t = 30)]
    minutes: u64,
    /// The moments of killing [default: the time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The command [default: it is built]
    #[arg(long, value_name = "FILE")]
    troika: Option<PathBuf>,
    /// 0: leave out the tests of sequences that share an engine
    #[arg(long, value_name = "N", default_value_t = 1)]
    sequences: u64,
    /// Minutes of clients that come, go and stall at a server; 0: none
    #[arg(long, value_name = "N", default_value_t = 10)]
    server: u64,
    /// Requests to it that are wrong
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    malformed: u64,
}

/// The longest time until a process is killed, as a share of a whole run.
const LONGEST: f64 = 1.2;

/// A folder with a cache, and the command's output without one.
struct Soak {
    troika: PathBuf,
    model: PathBuf,
    dir: PathBuf,
    want: Vec<u8>,
    end: Instant,
}

/// Builds the command and tests it.
///
/// # Errors
/// The command does not build, or a start gives different output.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if options.sequences > 0 {
        let mut share = cargo(root, &["test", "-q", "--release", "--workspace"]);
        share.args(["--test", "sequences", "--test", "threads", "--", "--ignored", "--nocapture"]);
        command::run(&mut share, "the test of sequences that share an engine")?;
    }
    let troika = options.troika.clone().map_or_else(|| build_troika(root), Ok)?;
    if options.server > 0 {
        clients(root, &troika, options)?;
    }
    let dir = std::env::temp_dir().join(format!("troika-soak-{}", std::process::id()));
    std::fs::create_dir_all(&dir).map_err(|e| failed("make", &dir, &e))?;
    let mut soak = Soak {
        troika,
        model: root.join("models/tiny-moe"),
        dir: dir.clone(),
        want: Vec::new(),
        end: Instant::now() + Duration::from_secs(60 * options.minutes),
    };
    let result = soak.all(options);
    let _ = std::fs::remove_dir_all(dir);
    result
}

/// Sends clients to servers of the command.
fn clients(root: &Path, troika: &Path, options: &Options) -> Result<()> {
    let place = root.join("target/clients");
    command::run(Command::new(root.join(".ci/clients")).arg(&place), ".ci/clients")?;
    let mut script = Command::new(place.join("bin/python"));
    script.arg(root.join("tests/clients/soak.py"));
    script.arg(troika.canonicalize().map_err(|e| failed("find", troika, &e))?);
    for (flag, number) in [
        ("--minutes", options.server),
        ("--malformed", options.malformed),
        ("--kills", options.kills.min(10)),
        ("--seed", options.seed.unwrap_or(1)),
    ] {
        script.args([flag, &number.to_string()]);
    }
    command::run(script.env("PYTHONDONTWRITEBYTECODE", "1"), "soak.py")
}

fn report(what: &str, out: &Output) -> String {
    let (stdout, stderr) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    format!("{what}: {}\nstdout: {stdout}\nstderr: {stderr}", out.status)
}

impl Soak {
    /// The arguments of a run with deterministic output.
    fn arguments(&self, cache: &Path) -> Vec<String> {
        let model = self.model.display().to_string();
        let mut args = vec!["run".to_string(), model];
        let fixed = ["-p", "It was a dark night", "-n", "16", "--temp", "0", "-q", "--quant", "q4"];
        args.extend(fixed.map(String::from));
        match cache == Path::new("") {
            true => args.push("--no-cache".into()),
            false => args.extend(["--cache-dir".into(), cache.display().to_string()]),
        }
        args
    }

    fn command(&self, cache: &Path) -> Command {
        let mut command = Command::new(&self.troika);
        command.args(self.arguments(cache)).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn all(&mut self, options: &Options) -> Result<()> {
        let start = Instant::now();
        let out = command::output(&mut self.command(Path::new("")))?;
        if !out.status.success() || out.stdout.is_empty() {
            return Err(report("the run without a cache", &out));
        }
        self.want = out.stdout;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = options.seed.unwrap_or(now.as_nanos() as u64);
        println!("soak: seed {seed}, a run takes {:.2?}", start.elapsed());
        if options.kills > 0 {
            self.kill(options.kills, seed)?;
        }
        match options.step {
            0 => Ok(()),
            step => self.fill(step),
        }
    }

    /// Whether the time is up.
    fn is_over(&self, what: &str, done: u64) -> bool {
        let over = Instant::now() > self.end;
        if over {
            println!("soak: the time is up after {done} {what}");
        }
        over
    }

    fn check(&self, out: &Output, when: &str) -> Result<()> {
        match out.status.success() && out.stdout == self.want {
            true => Ok(()),
            false => Err(report(&format!("{when}, a start writes something else"), out)),
        }
    }

    /// Repeatedly kills two concurrent processes at a random moment, then starts a third.
    fn kill(&self, kills: u64, seed: u64) -> Result<()> {
        let cache = self.dir.join("cache");
        let start = Instant::now();
        self.check(&command::output(&mut self.command(&cache))?, "the first time")?;
        let whole = start.elapsed();
        let mut random = Random(seed);
        let (mut left, mut warnings, mut written) = (0, 0, 0);
        for done in 0..kills {
            if self.is_over("kills", done) {
                break;
            }
            // Often without a cache, so that everything is written.
            if !done.is_multiple_of(3) {
                let _ = std::fs::remove_dir_all(&cache);
            } else {
                damage(&cache, &mut random);
            }
            let start = |_| self.command(&cache).spawn().map_err(|e| e.to_string());
            let mut both: Vec<Child> = (0..2).map(start).collect::<Result<_>>()?;
            for child in &mut both {
                sleep(whole.mul_f64(random.share() * LONGEST / 2.0));
                child.kill().map_err(|e| e.to_string())?;
            }
            for child in both {
                child.wait_with_output().map_err(|e| e.to_string())?;
            }
            left += files(&cache, "partial");
            written += usize::from(files(&cache, "packed") > 0);
            let out = command::output(&mut self.command(&cache))?;
            self.check(&out, &format!("after kill {done}"))?;
            warnings += usize::from(!out.stderr.is_empty());
            self.whole(&cache, &format!("after kill {done}"))?;
        }
        println!(
            "soak: {kills} kills of two processes: {left} files left behind and removed, {written} times \
             a whole file was there, {warnings} warnings, the text always the same ({:.0?})",
            start.elapsed()
        );
        Ok(())
    }

    /// Checks that the cache has one complete file and nothing else.
    fn whole(&self, cache: &Path, when: &str) -> Result<()> {
        let mut verify = Command::new(&self.troika);
        verify.args(["cache", "verify", "--cache-dir"]).arg(cache);
        let out = command::output(&mut verify)?;
        if !out.status.success() {
            return Err(report(&format!("{when}, the cache is damaged"), &out));
        }
        match (files(cache, "partial"), files(cache, "packed")) {
            (0, 1) => Ok(()),
            (partial, packed) => Err(format!(
                "{when}, there are {partial} partial files and {packed} of packed weights"
            )),
        }
    }

    /// Puts the cache on file systems of all sizes, up to one where everything fits.
    fn fill(&self, step: u64) -> Result<()> {
        let (start, disk) = (Instant::now(), self.dir.join("disk"));
        std::fs::create_dir_all(&disk).map_err(|e| e.to_string())?;
        let (mut sizes, mut warned) = (0, 0);
        for kib in (1..).map(|n| n * step) {
            if self.is_over("sizes", sizes) {
                return Ok(());
            }
            let script = "mount -t tmpfs -o size=$1k none \"$2\" || exit 99; d=$2; shift 2; \
                          for i in 1 2; do \"$@\" || exit; done; \
                          find \"$d\" -name '*.packed' | grep -q . && echo kept; \
                          find \"$d\" -name '*.partial' | grep . && exit 98; exit 0";
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-c", script, "sh", &kib.to_string()]).arg(&disk);
            command.arg(&self.troika).args(self.arguments(&disk)).stdin(Stdio::null());
            let out = command::output(&mut command)?;
            if out.status.code() == Some(99)
                || String::from_utf8_lossy(&out.stderr).starts_with("unshare")
            {
                println!("soak: no full disk: this system does not let a file system be mounted");
                return Ok(());
            }
            let kept = out.stdout.ends_with(b"kept\n");
            let text = out.stdout.strip_suffix(b"kept\n").unwrap_or(&out.stdout);
            if !out.status.success() || text != self.want.repeat(2) {
                return Err(report(&format!("with a disk of {kib} KiB"), &out));
            }
            let told = String::from_utf8_lossy(&out.stderr).contains("cannot be kept");
            if told == kept {
                return Err(report(&format!("with a disk of {kib} KiB, kept is {kept}"), &out));
            }
            sizes += 1;
            warned += usize::from(told);
            if kept {
                break;
            }
        }
        println!(
            "soak: full disks of {sizes} sizes: {warned} warnings, the text always the same, \
             nothing left behind ({:.0?})",
            start.elapsed()
        );
        Ok(())
    }
}

/// splitmix64, so that a seed says what is done.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Occasionally changes a file of packed weights, like a failing disk.
fn damage(cache: &Path, random: &mut Random) {
    let entries = std::fs::read_dir(cache.join("packed")).into_iter().flatten().flatten();
    for path in entries.map(|e| e.path()) {
        let Ok(mut bytes) = std::fs::read(&path) else { continue };
        let at = (random.share() * bytes.len() as f64) as usize;
        match random.next() % 3 {
            0 => bytes.truncate(at),
            1 => bytes[at..].fill(0),
            _ => continue,
        }
        let _ = std::fs::write(path, bytes);
    }
}

fn files(cache: &Path, ending: &str) -> usize {
    let dirs = ["packed", "hashes"].map(|d| std::fs::read_dir(cache.join(d)));
    let entries = dirs.into_iter().flatten().flatten().flatten();
    entries.filter(|e| e.path().extension().is_some_and(|x| x == ending)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_spread() {
        let mut random = Random(1);
        let shares: Vec<f64> = (0..1000).map(|_| random.share()).collect();
        let mean = shares.iter().sum::<f64>() / 1000.0;
        assert!(shares.iter().all(|s| (0.0..1.0).contains(s)) && (0.45..0.55).contains(&mean));
    }
}
