//! What to run: the command line, parsed and checked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rsccl::internals::plan;
use rsccl::{Config, DataType, Error, Result};

use super::verify::{Op, Program};
use super::{Arguments, Transport, device, plot};

/// What to run, the same on all ranks.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) programs: Vec<Program>,
    /// Programs that have none of the requested algorithms.
    pub(crate) left_out: Vec<Program>,
    pub(crate) types: Vec<DataType>,
    pub(crate) ops: Vec<Op>,
    pub(crate) roots: Roots,
    pub(crate) sizes: Vec<u64>,
    pub(crate) ranks: u32,
    pub(crate) timing: Timing,
    /// Checked calls.
    pub(crate) checks: u32,
    pub(crate) seed: u64,
    /// Elements by which buffers miss their alignment.
    pub(crate) skew: usize,
    /// Whether buffers are registered: on devices as windows.
    pub(crate) registered: bool,
    pub(crate) transport: Transport,
    /// The devices that ranks work on; none: the host.
    pub(crate) devices: Vec<u32>,
    /// The configuration, with the environment applied.
    pub(crate) config: Config,
    /// The algorithms that may be chosen, for tables.
    pub(crate) algorithm: String,
    /// The protocols that may be chosen, for tables.
    pub(crate) protocol: String,
    /// How often the table is run.
    pub(crate) cycles: u32,
    pub(crate) json: Option<PathBuf>,
    pub(crate) csv: Option<PathBuf>,
    pub(crate) plot: Option<(PathBuf, plot::Format)>,
}

/// The ranks of a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranks {
    pub(crate) count: u32,
    pub(crate) transport: Transport,
    /// Whether a launcher has started them, on one host or several.
    pub(crate) launched: bool,
}

/// How to time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    pub(crate) iterations: Iterations,
    /// Calls of one iteration.
    pub(crate) calls_each: u32,
    pub(crate) warm_up: WarmUp,
    /// Where ranks meet inside a loop.
    pub(crate) meetings: Meetings,
    /// Loops.
    pub(crate) loops: u32,
    pub(crate) over_ranks: OverRanks,
}

/// The timed iterations of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Iterations {
    /// Nothing is timed.
    None,
    Exactly(u32),
    /// As many as fill the minimum time of a loop.
    Enough,
}

/// The calls before the timed ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum WarmUp {
    Exactly(u32),
    /// Until the time of a call no longer falls, for at most this many seconds.
    UntilItStands(f64),
}

/// Where ranks meet inside a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meetings {
    Never,
    AfterCalls,
    AfterIterations,
}

/// How the ranks' times are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OverRanks {
    First,
    Average,
    Least,
    Greatest,
}

/// The roots of rooted collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Roots {
    Each,
    One(u32),
}

impl Job {
    /// The job of a command line.
    ///
    /// # Errors
    /// [`rsccl::error::Kind::InvalidArgument`] that names the option and what is allowed.
    pub(crate) fn new(arguments: &Arguments, ranks: Ranks) -> Result<Job> {
        let roots = match u32::try_from(arguments.root) {
            Ok(root) if root < ranks.count => Roots::One(root),
            Err(_) if arguments.root == -1 => Roots::Each,
            _ => {
                let (root, last) = (arguments.root, ranks.count - 1);
                return Err(wrong(format!("-r {root}: allowed: a rank from 0 to {last}, or -1 for each in turn")));
            }
        };
        let over_ranks = match arguments.average {
            0 => OverRanks::First,
            1 => OverRanks::Average,
            2 => OverRanks::Least,
            _ => OverRanks::Greatest,
        };
        let iterations = match arguments.iters {
            _ if arguments.check_only => Iterations::None,
            Some(count) => Iterations::Exactly(count),
            None => Iterations::Enough,
        };
        let warm_up = arguments.warmup_iters.map_or(WarmUp::UntilItStands(arguments.warmup_time), WarmUp::Exactly);
        let meetings = match arguments.blocking {
            1 => Meetings::AfterCalls,
            3 => Meetings::AfterIterations,
            _ => Meetings::Never,
        };
        let (calls_each, loops) = (arguments.agg_iters, arguments.repeat);
        if arguments.check_only && arguments.check == 0 {
            return Err(wrong("--check-only with -c 0 leaves nothing to do"));
        }
        if arguments.json.iter().chain(&arguments.csv).filter(|path| is_standard_output(path)).count() > 1 {
            return Err(wrong("--json - and --csv -: standard output is for one of them"));
        }
        if arguments.check_only && arguments.plot.is_some() {
            return Err(wrong("--plot with --check-only: nothing is timed, so there is nothing to draw"));
        }
        let programs = list("collective", &arguments.collective, Program::ALL, Program::name, Program::from_name)?;
        let (programs, left_out) = able(programs, arguments.algo.as_deref())?;
        let config = config(arguments, ranks, &programs)?;
        let job = Job {
            devices: devices(arguments, ranks)?,
            types: list("-d", &arguments.datatype, DataType::ALL, DataType::name, data_type)?,
            ops: list("-o", &arguments.op, Op::ALL, Op::name, Op::from_name)?,
            roots,
            sizes: sizes(arguments)?,
            ranks: ranks.count,
            timing: Timing { iterations, calls_each, warm_up, meetings, loops, over_ranks },
            checks: arguments.check,
            seed: arguments.seed,
            skew: arguments.unalign as usize,
            registered: arguments.local_register != 0,
            transport: ranks.transport,
            algorithm: shown(&programs, arguments.algo.as_deref(), config.algo.as_deref()),
            protocol: shown(&programs, arguments.proto.as_deref(), config.proto.as_deref()),
            config,
            programs,
            left_out,
            cycles: arguments.run_cycles,
            json: arguments.json.clone(),
            csv: arguments.csv.clone(),
            plot: arguments
                .plot
                .clone()
                .map(|path| Ok((plot::Format::of(&path)?, path)))
                .transpose()?
                .map(|(format, path)| (path, format)),
        };
        job.check_operators()?;
        Ok(job)
    }

    /// The operators of `program` on `data_type`; one `None` where it takes none.
    pub(crate) fn ops(&self, program: Program, data_type: DataType) -> Vec<Option<Op>> {
        if !program.reduces() {
            return vec![None];
        }
        self.ops.iter().copied().filter(|op| op.fits(data_type) && program.takes(*op)).map(Some).collect()
    }

    /// The roots of `program`; one `None` where it has none.
    pub(crate) fn roots(&self, program: Program) -> Vec<Option<u32>> {
        match self.roots {
            _ if !program.rooted() => vec![None],
            Roots::One(root) => vec![Some(root)],
            Roots::Each => (0..self.ranks).map(Some).collect(),
        }
    }

    /// The sizes of `program`.
    pub(crate) fn sizes(&self, program: Program) -> &[u64] {
        if program == Program::Barrier { &[0] } else { &self.sizes }
    }

    /// The types of `program`.
    pub(crate) fn types(&self, program: Program) -> &[DataType] {
        if program == Program::Barrier { &self.types[..1] } else { &self.types }
    }

    /// Opens every file that will be written, so that one that cannot be is known before anything runs.
    ///
    /// # Errors
    /// [`rsccl::error::Kind::System`] that names the option and the file.
    pub(crate) fn open_files(&self) -> Result<()> {
        let plot = self.plot.as_ref().map(|(path, _)| path);
        for (option, path) in [("--json", self.json.as_ref()), ("--csv", self.csv.as_ref()), ("--plot", plot)] {
            if let Some(path) = path.filter(|path| !is_standard_output(path)) {
                let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
                opened.map_err(|error| Error::system(format!("{option} {}", path.display()), error))?;
            }
        }
        Ok(())
    }

    /// Whether standard output is for a report, so that the table goes elsewhere.
    pub(crate) fn reports_to_standard_output(&self) -> bool {
        self.json.iter().chain(&self.csv).any(|path| is_standard_output(path))
    }

    /// Refuses reductions without any fitting pair of type and operator: otherwise nothing would run, silently.
    fn check_operators(&self) -> Result<()> {
        let reducing = || self.programs.iter().filter(|program| program.reduces());
        let fits = |op: &Op| self.types.iter().any(|data_type| op.fits(*data_type));
        if reducing().next().is_some() && !self.ops.iter().any(fits) {
            return Err(wrong(
                "-o, -d: bitwise operators are for integers; choose an integer type or another operator",
            ));
        }
        if reducing().next().is_some() && !reducing().any(|program| self.ops.iter().any(|op| program.takes(*op))) {
            return Err(wrong("-o: scan and exscan take neither avg nor mulsum; choose another operator"));
        }
        Ok(())
    }
}

/// Whether a report's file is standard output.
pub(crate) fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-")
}

/// The devices that ranks work on; none: the host.
fn devices(arguments: &Arguments, ranks: Ranks) -> Result<Vec<u32>> {
    let Some(devices) = &arguments.device else {
        if arguments.local_register == 2 {
            return Err(wrong("-R 2 without --device: windows are memory of devices; use -R 1 for memory of the host"));
        }
        return Ok(Vec::new());
    };
    device::check(ranks.transport, arguments.local_register)?;
    devices.numbers()
}

/// The configuration of the communicators.
fn config(arguments: &Arguments, ranks: Ranks, programs: &[Program]) -> Result<Config> {
    let transport = ranks.transport;
    let mut config = Config::default()
        .with_p2p_disable(matches!(transport, Transport::Shm | Transport::Net))
        .with_shm_disable(transport == Transport::Net);
    if transport != Transport::Local && !ranks.launched {
        // All ranks are on this host.
        config = config.with_socket_interfaces("lo");
    }
    if let Some(algo) = &arguments.algo {
        config = config.with_algo(only_for(programs, algo)).with_strict_filters(true);
    }
    if let Some(proto) = &arguments.proto {
        config = config.with_proto(only_for(programs, proto)).with_strict_filters(true);
    }
    if let Some(seconds) = arguments.timeout {
        config = config.with_timeout(Duration::from_secs(seconds));
    }
    config.resolve()
}

/// Splits `programs` into those that have one of the named algorithms, and the others. A program that was requested
/// alone stays in the first part: the library then says why it cannot run.
fn able(programs: Vec<Program>, algorithms: Option<&str>) -> Result<(Vec<Program>, Vec<Program>)> {
    let Some(named) = algorithms.filter(|text| programs.len() > 1 && is_list(text)) else {
        return Ok((programs, Vec::new()));
    };
    let named: Vec<&str> = named.split(',').map(str::trim).collect();
    let can = |program: &Program| {
        let possible = program.collective().map_or(&[][..], plan::algorithms);
        possible.iter().any(|algorithm| named.iter().any(|name| name.eq_ignore_ascii_case(algorithm.name())))
    };
    let (able, unable): (Vec<Program>, Vec<Program>) = programs.into_iter().partition(can);
    if able.is_empty() {
        return Err(wrong(format!("--algo {}: none of the collectives has this algorithm", named.join(","))));
    }
    Ok((able, unable))
}

/// A filter for `programs` alone, so that the barriers and gathers of this command itself go as they like.
fn only_for(programs: &[Program], text: &str) -> String {
    if !is_list(text) {
        return text.to_owned();
    }
    let collectives = programs.iter().filter_map(|program| program.collective());
    collectives.map(|collective| format!("{collective}:{text}")).collect::<Vec<_>>().join(";")
}

/// Whether a filter is a list of names without collectives.
fn is_list(text: &str) -> bool {
    !text.contains([':', ';'])
}

/// A filter as tables show it: the option, unless the environment overrides it.
fn shown(programs: &[Program], option: Option<&str>, in_force: Option<&str>) -> String {
    match (option, in_force) {
        (Some(option), Some(in_force)) if only_for(programs, option) == in_force => option.to_owned(),
        (_, Some(in_force)) => in_force.to_owned(),
        (_, None) => "auto".to_owned(),
    }
}

/// A size in bytes: a number, optionally followed by K, M or G.
pub(crate) fn parse_bytes(text: &str) -> std::result::Result<u64, String> {
    let bare = text.trim_end_matches(['b', 'B']).trim_end_matches('i');
    let (digits, shift) = match bare.char_indices().last() {
        Some((at, 'k' | 'K')) => (&bare[..at], 10),
        Some((at, 'm' | 'M')) => (&bare[..at], 20),
        Some((at, 'g' | 'G')) => (&bare[..at], 30),
        _ => (bare, 0),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is not a size: write 8, 64K, 16M or 1G"))?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes <= MOST_BYTES);
    bytes.ok_or_else(|| format!("`{text}` is above the greatest size, {MOST_BYTES} bytes"))
}

fn sizes(arguments: &Arguments) -> Result<Vec<u64>> {
    let (least, greatest) = (arguments.minbytes, arguments.maxbytes.unwrap_or(arguments.minbytes));
    if least > greatest {
        return Err(wrong(format!("-b {least} is above -e {greatest}")));
    }
    if arguments.stepfactor.is_none() && arguments.stepbytes == 0 && least < greatest {
        return Err(wrong(format!(
            "-i 0 never comes from -b {least} to -e {greatest}: give a step, or a factor with -f"
        )));
    }
    let next = |size: u64| match arguments.stepfactor {
        Some(_) if size == 0 => Some(AFTER_ZERO),
        Some(factor) => size.checked_mul(factor),
        None if arguments.stepbytes == 0 => None,
        None => size.checked_add(arguments.stepbytes),
    };
    let sizes: Vec<u64> = std::iter::successors(Some(least), |size| next(*size))
        .take_while(|size| *size <= greatest)
        .take(MOST_SIZES + 1)
        .collect();
    if sizes.len() > MOST_SIZES {
        return Err(wrong(format!("-b, -e, -i: more than {MOST_SIZES} sizes; use a larger step, or a factor with -f")));
    }
    Ok(sizes)
}

/// The values named in `text`, with commas between; all of `known` for `all`.
fn list<T: Copy>(
    option: &str,
    text: &str,
    known: &[T],
    name: impl Fn(T) -> &'static str,
    from_name: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>> {
    if text.eq_ignore_ascii_case("all") {
        return Ok(known.to_vec());
    }
    let one = |word: &str| {
        from_name(word.trim()).ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|value| name(*value)).collect();
            wrong(format!("{option}: `{word}` is unknown; allowed: {}, all", names.join(", ")))
        })
    };
    text.split(',').map(one).collect()
}

/// The type with this name, or with another name in use for it.
fn data_type(name: &str) -> Option<DataType> {
    let name = name.to_ascii_lowercase();
    let usual = match name.as_str() {
        "char" | "i8" => "int8",
        "u8" => "uint8",
        "int" | "i32" => "int32",
        "u32" => "uint32",
        "i64" => "int64",
        "u64" => "uint64",
        "float16" | "f16" | "fp16" => "half",
        "bf16" => "bfloat16",
        "float32" | "f32" | "fp32" => "float",
        "float64" | "f64" | "fp64" => "double",
        "fp8_e4m3" | "fp8e4m3" => "f8e4m3",
        "fp8_e5m2" | "fp8e5m2" => "f8e5m2",
        other => other,
    };
    DataType::from_name(usual)
}

fn wrong(message: impl Into<String>) -> Error {
    Error::invalid_argument(message)
}

/// Far above any memory, far below overflow.
const MOST_BYTES: u64 = 1 << 46;
/// Rows of one collective, type, operator and root.
const MOST_SIZES: usize = 10_000;
/// The size after 0 where sizes grow by a factor.
const AFTER_ZERO: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes_and_a_bound() {
        assert_eq!(parse_bytes("8"), Ok(8));
        assert_eq!(parse_bytes("64K"), Ok(65536));
        assert_eq!(parse_bytes("3MiB"), Ok(3 << 20));
        assert_eq!(parse_bytes("1gb"), Ok(1 << 30));
        for bad in ["", "K", "-1", "1.5M", "12Q", "99999999999999999999", "17179869184G"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_have_aliases() {
        assert_eq!(data_type("fp8_e4m3"), Some(DataType::F8E4M3));
        assert_eq!(data_type("Float"), Some(DataType::F32));
        assert_eq!(Program::from_name("alltoall"), Some(Program::AllToAll));
        assert!(list("-o", "sum,mox", Op::ALL, Op::name, Op::from_name).is_err());
    }
}
