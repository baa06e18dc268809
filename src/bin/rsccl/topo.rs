//! `rsccl topo`: a machine as rsccl sees it, this one or that of a file.

mod found;
mod networks;
mod picture;
mod show;
mod switches;

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rsccl::internals::config::Note;
use rsccl::internals::reach::this_host;
use rsccl::internals::session::settings;
use rsccl::internals::sys::{nvml, open, text_file};
use rsccl::internals::topo::description::Machine;
use rsccl::internals::topo::graphs::Graph;
use rsccl::internals::topo::paths::PathKind;
use rsccl::internals::topo::search::between::CrossNic;
use rsccl::internals::topo::system::{NodeId, NodeKind, System};
use rsccl::internals::topo::transport_choice::described::NETWORK_AS_BUILT;
use rsccl::internals::topo::transport_choice::ladder::WaySettings;
use rsccl::internals::topo::{doubts, graphs, machine_file, overlay, rails, xml};
use rsccl::{Config, Error, Result};

use crate::print;
use found::Found;
use networks::Networks;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A topology file in NCCL's or RCCL's format, or hwloc's (`lstopo --of xml`), in place of this machine; or a
    /// folder with another machine's `sys` and `proc`
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The same as `--file FILE`
    #[arg(value_name = "FILE", conflicts_with = "file")]
    machine: Option<PathBuf>,
    /// What the file leaves out: GPUs, links, NICs (topology files of clouds describe PCI devices only)
    #[arg(long, value_name = "FILE")]
    overlay: Option<PathBuf>,
    /// The number of hosts, each as the file or this machine says: at most 1024, for what this command shows grows with
    /// the square of the hosts; `rsccl sim` takes more
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    hosts: u32,
    /// The way between each two GPUs and from each GPU to each NIC: kind and GB/s
    #[arg(long)]
    paths: bool,
    /// The way between two devices, link by link. Of two GPUs the way that ranks on them take to each other's memory,
    /// and why no better one, under the settings of the environment; `gpu:0`, `1/gpu:0` on host 1, `nic:mlx5_0`. Of two
    /// hosts' network interfaces the rails between them, and why the others are left out; `net:` for this machine,
    /// `net:eth0=10.1.0.2/24@25000,eth1=...` for another (address, subnet, Mbit/s; `#3` behind that is RSCCL_RAILS)
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    why: Option<Vec<String>>,
    /// Write a picture: devices, links with GB/s, channels in colours
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON: an object with `nodes`, `paths`, `graphs`, `notes`, and of this machine `networks`
    #[arg(long)]
    json: bool,
    /// Write the machine as a topology file
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// Channels from a graph file of NCCL's, in place of a search. As for communicators (NCCL_GRAPH_FILE) the file
    /// counts where there is one host
    #[arg(long, value_name = "FILE")]
    graph: Option<PathBuf>,
    /// Write the channels of the first host as a graph file of NCCL's
    #[arg(long, value_name = "FILE")]
    dump_graph: Option<PathBuf>,
    /// NCCL_CROSS_NIC: channels leave a host by another NIC than they enter by: 0 never, 1 where that is no worse, 2
    /// where it is better
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=2))]
    cross_nic: Option<u32>,
}

/// Prints what the options ask for; without any, the tree, the channels inside hosts and between them, the switches of
/// a file that `RSCCL_SWITCH_FILE` names, and the networks of this machine.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode> {
    let config = Config::default().resolve()?;
    let (machine, mut notes) = describe(arguments, &config)?;
    let mistakes =
        config.notes().iter().filter_map(|note| if let Note::Mistake(text) = note { Some(text) } else { None });
    notes.extend(mistakes.cloned());
    let system = System::new(&machine)?;
    if let Some(path) = arguments.dump.as_ref().or(config.topo_dump_file.as_ref()) {
        write(path, &xml::write(&machine))?;
    }
    let cross = CrossNic::of_number(arguments.cross_nic.unwrap_or(config.cross_nic));
    let mut found = Found::search(&system, cross);
    if let Some(graphs) = graphs_of_file((arguments.graph.as_ref(), &config), &machine, &mut notes)? {
        notes.extend(found.replace(&system, &graphs)?);
    }
    notes.extend(found.between().is_some().then(|| format!("between hosts: {UNBUILT}; {NETWORK_AS_BUILT}")));
    notes.extend(found.gaps(&system));
    let switches = switches::Above::read(&config)?;
    notes.extend(switches.notes().cloned());
    if let Some(path) = arguments.dump_graph.as_ref().or(config.graph_dump_file.as_ref()) {
        write(path, &graphs::write(&found.graphs(&system)?))?;
    }
    if let Some(path) = &arguments.svg {
        write(path, &picture::svg(&system, &found))?;
    }
    let is_here = arguments.file.is_none() && arguments.machine.is_none() && config.topo_file.is_none();
    let text = match (&arguments.why, arguments.json, arguments.paths) {
        (Some(ends), ..) if ends.iter().all(|end| end.starts_with(NICS)) => rails_of([&ends[0], &ends[1]], &config)?,
        (Some(ends), ..) => {
            let ends = (find(&system, &ends[0])?, find(&system, &ends[1])?);
            let told = ToldByNvml::default();
            let driver = |one, other| if is_here { told.of(&system, one, other) } else { None };
            let network = if is_here && leaves_host(&system, ends) { network_lines(&config)? } else { String::new() };
            show::why(&system, ends, way_settings(&config)?, &driver) + &network
        }
        (None, true, _) => {
            let mut shown = show::json(&system, &found, &notes);
            shown["switches"] = switches.json();
            shown["networks"] = if is_here { Networks::here(&config)? } else { Networks::default() }.json();
            format!("{shown:#}\n")
        }
        (None, false, true) => show::paths(&system),
        (None, false, false) => {
            let networks = if is_here { Networks::here(&config)? } else { Networks::default() };
            format!("{}{}{}", show::tree(&machine, &system, &found), switches.text(), networks.text())
        }
    };
    print::out("the topology", &text)?;
    for note in notes.iter().filter(|_| !arguments.json) {
        print::complain(&format!("rsccl: {note}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The channels of the graph file that the option or the environment names, where communicators use it: on one host.
pub(crate) fn graphs_of_file(
    (option, config): (Option<&PathBuf>, &Config),
    machine: &Machine,
    notes: &mut Vec<String>,
) -> Result<Option<Vec<Graph>>> {
    let named_by = if option.is_some() { "--graph" } else { "NCCL_GRAPH_FILE" };
    let Some(path) = option.or(config.graph_file.as_ref()) else { return Ok(None) };
    let unused = graphs::unused((named_by, &path.display().to_string()), machine.hosts().len());
    if unused.is_some() {
        notes.extend(unused);
        return Ok(None);
    }
    let (name, text) = read(path, "the graph file", named_by)?;
    graphs::parse(&name, &text).map(Some)
}

/// What channels between hosts promise and nobody has built.
pub(crate) const UNBUILT: &str = "channels are those that the links would carry; PXN is not built, and \
                                  GPUDirect RDMA goes by net plug-ins alone";

/// The machine of the file, or this one, with the overlay, as often as was asked for. The notes say what was assumed
/// and what is missing.
fn describe(arguments: &Arguments, config: &Config) -> Result<(Machine, Vec<String>)> {
    let (machine, notes) =
        described(arguments.file.as_ref().or(arguments.machine.as_ref()), arguments.overlay.as_ref(), config)?;
    Ok((if arguments.hosts > 1 { machine.repeated(arguments.hosts) } else { machine }, notes))
}

/// The machine of the file, or this one, with the overlay.
pub(crate) fn described(
    file: Option<&PathBuf>,
    overlay: Option<&PathBuf>,
    config: &Config,
) -> Result<(Machine, Vec<String>)> {
    let (mut machine, mut notes) = match file.or(config.topo_file.as_ref()) {
        None => {
            let mut host = this_host::look(Path::new("/"), None);
            this_host::add_details(Path::new("/"), &mut host.machine);
            (host.machine, host.notes)
        }
        Some(path) if file.is_some() && has_sys(path)? => this_host::of_folder(path),
        Some(path) => {
            let named_by = if file.is_some() { "--file" } else { "NCCL_TOPO_FILE" };
            refuse_archive(path, named_by)?;
            let (name, text) = read(path, "the topology file", named_by)?;
            machine_file::parse(&name, &text)?
        }
    };
    if let Some(path) = overlay {
        let (name, text) = read(path, "the overlay", "--overlay")?;
        notes.extend(overlay::apply(&name, &text, &mut machine)?);
    }
    notes.extend(overlay::missing(&machine));
    notes.extend(doubts::of(&machine));
    Ok((machine, notes))
}

/// Whether it is a folder with a machine's `sys`.
///
/// # Errors
/// [`rsccl::ErrorKind::InvalidArgument`] of another folder, with the system's message;
/// [`rsccl::ErrorKind::System`] of one that cannot be looked into.
fn has_sys(path: &Path) -> Result<bool> {
    if !path.is_dir() {
        // What is there in its place is told by whoever reads it.
        return Ok(false);
    }
    let sys = path.join("sys");
    let missing = match std::fs::metadata(&sys) {
        Ok(found) if found.is_dir() => return Ok(true),
        Ok(_) => std::io::Error::from(std::io::ErrorKind::NotADirectory),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => error,
        Err(error) => return Err(Error::system(format!("reading the folder {} (--file)", sys.display()), error)),
    };
    Err(Error::invalid_argument(format!(
        "the folder {} (--file) has no folder sys ({missing}): name a file, or the folder that has a machine's sys and \
         proc in it",
        path.display()
    )))
}

/// Collections of machines, as hwloc's, are archives with a machine's `sys` in them.
///
/// # Errors
/// [`rsccl::ErrorKind::InvalidArgument`] of an archive, with what to do.
fn refuse_archive(path: &Path, named_by: &str) -> Result<()> {
    use std::io::Read as _;
    let mut start = Vec::new();
    // What cannot be read is told by whoever reads it next.
    if let Ok(true) = std::fs::metadata(path).map(|of| of.is_file())
        && let Ok(file) = std::fs::File::open(path)
    {
        let _read = file.take(6).read_to_end(&mut start);
    }
    let kinds: [(&[u8], &str); 5] = [
        (b"BZh", "bzip2"),
        (b"\x1f\x8b", "gzip"),
        (b"\xfd7zXZ", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"PK\x03\x04", "zip"),
    ];
    match kinds.iter().find(|(magic, _)| start.starts_with(magic)) {
        None => Ok(()),
        Some((_, kind)) => Err(Error::invalid_argument(format!(
            "the topology file {} ({named_by}) is packed ({kind}): unpack it, and name the XML file or the folder that \
             has sys in it",
            path.display()
        ))),
    }
}

/// What NVML says of GPUs of this machine, as communicators ask it of GPUs that they do not see. NVML begins anew with
/// each question: none is asked twice.
#[derive(Debug, Default)]
struct ToldByNvml {
    gpus: OnceCell<Vec<nvml::Gpu>>,
    reached: RefCell<HashMap<[[u8; 16]; 2], Option<bool>>>,
}

impl ToldByNvml {
    fn of(&self, system: &System, one: NodeId, other: NodeId) -> Option<std::result::Result<(), String>> {
        let gpus = self.gpus.get_or_init(|| nvml::gpus().unwrap_or_default());
        let uuid = |id: NodeId| {
            let bus_id = system.node(id).bus_id.as_ref()?;
            gpus.iter().find(|gpu| gpu.bus_id == *bus_id)?.uuid
        };
        let pair = [uuid(one)?, uuid(other)?];
        let mut reached = self.reached.borrow_mut();
        let reaches = (*reached.entry(pair).or_insert_with(|| nvml::reaches(pair[0], pair[1])))?;
        let refused = || format!("no peer access between {} and {}, says NVML", system.name(one), system.name(other));
        Some(if reaches { Ok(()) } else { Err(refused()) })
    }
}

/// By which ways ranks may reach each other, and how far GPUs and NICs may be apart.
pub(crate) fn way_settings(config: &Config) -> Result<(WaySettings, Option<PathKind>)> {
    Ok((settings::ways(config)?, settings::GpuDirectSettings::read(config)?.level))
}

/// A file's name and text: `what` it is, and the option or variable that names it.
fn read(path: &Path, what: &str, named_by: &str) -> Result<(String, String)> {
    Ok((path.display().to_string(), text_file::read(path, what, named_by)?))
}

fn write(path: &Path, text: &str) -> Result<()> {
    open::write(path, text).map_err(|error| Error::system(format!("writing {}", path.display()), error))
}

/// The rails between two hosts, whose interfaces `--why` names.
fn rails_of(ends: [&str; 2], config: &Config) -> Result<String> {
    let nics = |end: &str| match end.strip_prefix(NICS).unwrap_or(end) {
        "" => settings::nics_here(config),
        told => rails::parse(told).map_err(|error| error.during("--why")),
    };
    let [mine, theirs] = [nics(ends[0])?, nics(ends[1])?];
    let lines = rails::between(&mine, &theirs).described((&mine, &theirs));
    let network = if ends.contains(&NICS) { network_lines(config)? } else { String::new() };
    Ok(format!("rails between {} and {}\n  {}\n{network}", ends[0], ends[1], lines.join("\n  ")))
}

/// Whether data between two devices may leave a host: one of them is a NIC, or they are on two hosts.
fn leaves_host(system: &System, (one, other): (NodeId, NodeId)) -> bool {
    let is_port = |id: NodeId| matches!(system.node(id).kind, NodeKind::Port { .. });
    is_port(one) || is_port(other) || system.node(one).host != system.node(other).host
}

/// Which NIC ranks of this machine use, and why none of the others, line by line.
fn network_lines(config: &Config) -> Result<String> {
    let network = settings::network_here(config, Path::new("/"))?;
    Ok(network.iter().map(|line| format!("NCCL_NET: {line}\n")).collect())
}

/// What a host's interfaces begin with in `--why`.
const NICS: &str = "net:";

/// `gpu:3`, `nic:mlx5_0`, `nic:2`, each with `host/` before it where there are several: `1/gpu:3`.
fn find(system: &System, wanted: &str) -> Result<NodeId> {
    let (host, name) = wanted.split_once('/').unwrap_or(("0", wanted));
    let is = |id: &NodeId| {
        let node = system.node(*id);
        let matches = match (&node.kind, name.split_once(':')) {
            (NodeKind::Gpu { device, .. }, Some(("gpu", number))) => number == device.to_string(),
            (NodeKind::Port { name, device, .. }, Some(("nic", port))) => port == name || port == device.to_string(),
            _ => false,
        };
        matches && node.host.to_string() == host
    };
    system.ids().find(is).ok_or_else(|| {
        let all: Vec<String> = system.gpus().into_iter().chain(system.ports()).map(|id| system.name(id)).collect();
        let all = if all.is_empty() { "neither GPU nor NIC".to_owned() } else { all.join(", ") };
        Error::invalid_argument(format!(
            "--why: no device {wanted:?} (gpu:0, nic:mlx5_0; 1/gpu:0 on host 1); there are {all}"
        ))
    })
}
