//! `rsccl topo`: a machine as rsccl sees it, this one or that of a file.

mod show;

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use rsccl::internals::sys::devices;
use rsccl::internals::topo::description::Machine;
use rsccl::internals::topo::system::{NodeId, NodeKind, System};
use rsccl::internals::topo::{detect, xml};
use rsccl::{Error, Result};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A topology file in NCCL's or RCCL's format, in place of this machine
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// So many hosts, each as the file or this machine says
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    hosts: u32,
    /// The way between each two GPUs and from each GPU to each NIC: kind and GB/s
    #[arg(long)]
    paths: bool,
    /// The way between two devices, link by link, and whether they can reach each other's memory; `gpu:0`, `nic:mlx5_0`
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    why: Option<Vec<String>>,
    /// Print JSON: an object with `nodes`, `paths`, `graphs`, `notes`
    #[arg(long)]
    json: bool,
    /// Write the machine as a topology file
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
}

/// Prints what was asked for; without a wish, the tree and the rings of each host.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode> {
    let (machine, notes) = match &arguments.file {
        None => this_machine(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Error::system(format!("reading {}", path.display()), error))?;
            xml::parse(&path.display().to_string(), &text)?
        }
    };
    let machine = if arguments.hosts > 1 { machine.repeated(arguments.hosts) } else { machine };
    let system = System::new(&machine)?;
    if let Some(path) = &arguments.dump {
        std::fs::write(path, xml::write(&machine))
            .map_err(|error| Error::system(format!("writing {}", path.display()), error))?;
    }
    let text = match (&arguments.why, arguments.json, arguments.paths) {
        (Some(ends), ..) => show::why(&system, find(&system, &ends[0])?, find(&system, &ends[1])?),
        (None, true, _) => format!("{:#}\n", show::json(&system, &notes)),
        (None, false, true) => show::paths(&system),
        (None, false, false) => show::tree(&machine, &system),
    };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever reads has read enough (`rsccl topo | head`).
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.map_err(|error| Error::system("writing the topology", error))?,
    }
    for note in notes.iter().filter(|_| !arguments.json) {
        eprintln!("rsccl: {note}");
    }
    Ok(ExitCode::SUCCESS)
}

fn this_machine() -> (Machine, Vec<String>) {
    let host = devices::scan(std::path::Path::new("/"));
    let nodes: Vec<(u32, &str)> = host.nodes.iter().map(|node| (node.number, &*node.cpus)).collect();
    let found: Vec<detect::Device<'_>> = host
        .devices
        .iter()
        .map(|device| detect::Device {
            path: &device.path,
            texts: device.texts.each_ref().map(|text| &**text),
            link: device.link.each_ref().map(|text| &**text),
            numa: device.numa,
            networks: &device.networks,
        })
        .collect();
    detect::host(std::env::consts::ARCH, host.processor.each_ref().map(|text| &**text), &nodes, &found)
}

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
