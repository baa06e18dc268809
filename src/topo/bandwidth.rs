//! Bandwidth of links, and the figures that links of each kind are known to reach.

use std::fmt;
use std::ops::{Add, AddAssign, Mul};

/// Megabytes (10^6) per second in one direction. Whole numbers: the same file gives the same graph on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bandwidth(pub u64);

impl Bandwidth {
    /// Of a link inside one device: more than any other link has.
    pub const LOCAL: Bandwidth = Bandwidth(5_000_000);

    /// Of a network port whose speed is given in Mbit/s, as the kernel and NCCL's files give it.
    pub const fn of_network(megabits: u64) -> Bandwidth {
        Bandwidth(megabits / 8)
    }

    /// In GB/s, for people.
    pub fn gigabytes(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "link speeds are far below 2^52 MB/s")]
        let megabytes = self.0 as f64;
        megabytes / 1e3
    }
}

impl Add for Bandwidth {
    type Output = Bandwidth;

    fn add(self, more: Bandwidth) -> Bandwidth {
        Bandwidth(self.0 + more.0)
    }
}

impl AddAssign for Bandwidth {
    fn add_assign(&mut self, more: Bandwidth) {
        self.0 += more.0;
    }
}

impl Mul<u64> for Bandwidth {
    type Output = Bandwidth;

    fn mul(self, times: u64) -> Bandwidth {
        Bandwidth(self.0 * times)
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GB/s", self.gigabytes())
    }
}

/// One NVLink or xGMI link of a GPU, by what the GPU is.
///
/// Source: NVIDIA's figures per link and generation less the protocol's share, as NCCL books them (18 for Pascal, 20
/// for Volta and Ampere, 12 for Ampere's small chips, 20.6 for Hopper, 40.1 for Blackwell); RCCL's for xGMI.
pub const fn gpu_link(model: GpuGeneration) -> Bandwidth {
    match model {
        GpuGeneration::Nvidia { capability: 100.. } => Bandwidth(40_100),
        GpuGeneration::Nvidia { capability: 90..=99 } => Bandwidth(20_600),
        GpuGeneration::Nvidia { capability: 86..=89 } => Bandwidth(12_000),
        GpuGeneration::Nvidia { capability: 70..=85 } => Bandwidth(20_000),
        GpuGeneration::Nvidia { capability: _ } => Bandwidth(18_000),
        GpuGeneration::Amd { gfx: 0x940.. } => Bandwidth(48_000),
        GpuGeneration::Amd { gfx: 0x90a..=0x93f } => Bandwidth(36_000),
        GpuGeneration::Amd { gfx: _ } => Bandwidth(24_000),
    }
}

/// What decides how fast a GPU's own links are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GpuGeneration {
    /// A GPU of NVIDIA: compute capability, 80 for 8.0.
    Nvidia {
        /// Major × 10 + minor.
        capability: u32,
    },
    /// A GPU of AMD: its architecture, 0x942 for gfx942.
    Amd {
        /// The digits of the name, read as a hexadecimal number.
        gfx: u32,
    },
}

/// A PCI Express link: transfers per second and lanes. 128b/130b coding and packet headers leave about 0.75 GB/s of a
/// lane at 8 GT/s, as measured between GPUs; other generations scale with the transfer rate.
pub const fn pci(gigatransfers: PciSpeed, lanes: u32) -> Bandwidth {
    let per_lane = match gigatransfers {
        PciSpeed::Gen1 => 188,
        PciSpeed::Gen2 => 375,
        PciSpeed::Gen3 => 750,
        PciSpeed::Gen4 => 1_500,
        PciSpeed::Gen5 => 3_000,
        PciSpeed::Gen6 => 6_000,
    };
    Bandwidth(per_lane * lanes as u64)
}

/// A generation of PCI Express, by its transfer rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PciSpeed {
    /// 2.5 GT/s.
    Gen1,
    /// 5 GT/s.
    Gen2,
    /// 8 GT/s.
    Gen3,
    /// 16 GT/s.
    Gen4,
    /// 32 GT/s.
    Gen5,
    /// 64 GT/s.
    Gen6,
}

impl PciSpeed {
    /// The speed of a generation, 1 to 6.
    pub const fn of_generation(generation: u32) -> Option<PciSpeed> {
        Some(match generation {
            1 => PciSpeed::Gen1,
            2 => PciSpeed::Gen2,
            3 => PciSpeed::Gen3,
            4 => PciSpeed::Gen4,
            5 => PciSpeed::Gen5,
            6 => PciSpeed::Gen6,
            _ => return None,
        })
    }

    /// Reads what sysfs and NCCL's files say: `8 GT/s`, `8.0 GT/s PCIe`, `16.0 GT/s PCIe`.
    pub fn parse(text: &str) -> Option<PciSpeed> {
        let number = text.trim().split_ascii_whitespace().next()?;
        Some(match number.trim_end_matches(".0") {
            "2.5" => PciSpeed::Gen1,
            "5" => PciSpeed::Gen2,
            "8" => PciSpeed::Gen3,
            "16" => PciSpeed::Gen4,
            "32" => PciSpeed::Gen5,
            "64" => PciSpeed::Gen6,
            _ => return None,
        })
    }
}

/// The link between two sockets (or two NUMA nodes) of a host, by the processor. Source: NCCL's figures for each
/// generation.
pub fn between_sockets(processor: &Processor) -> Bandwidth {
    match processor {
        Processor::Intel { model: 0xcf.. } => Bandwidth(40_000), // Emerald Rapids and newer
        Processor::Intel { model: 0x8f..=0xce } => Bandwidth(22_000), // Sapphire Rapids
        Processor::Intel { model: 0x55..=0x8e } => Bandwidth(10_000), // Skylake, Cascade Lake, Ice Lake
        Processor::Intel { model: _ } => Bandwidth(6_000),       // Broadwell and older
        Processor::Amd => Bandwidth(16_000),
        Processor::Zhaoxin => Bandwidth(6_000),
        Processor::Power => Bandwidth(32_000),
        Processor::Arm => Bandwidth(6_000),
        Processor::Other => Bandwidth(6_000),
    }
}

/// A processor, as far as its links depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Processor {
    /// Intel, x86-64.
    Intel {
        /// CPUID's model of family 6.
        model: u32,
    },
    /// AMD, x86-64.
    Amd,
    /// Zhaoxin, x86-64.
    Zhaoxin,
    /// IBM Power.
    Power,
    /// 64-bit Arm.
    Arm,
    /// Anything else.
    Other,
}

impl Processor {
    /// Peer-to-peer traffic through this processor's PCI root counts 6/5 on every link that it takes: Intel's roots
    /// forward it in smaller packets.
    pub const fn taxes_peers(self) -> bool {
        matches!(self, Processor::Intel { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_lanes_of_each_generation() {
        let of = |text: &str| pci(PciSpeed::parse(text).unwrap(), 16).gigabytes();
        assert_eq!(of("2.5 GT/s"), 3.008);
        assert_eq!(of("8 GT/s"), 12.0);
        assert_eq!(of("8.0 GT/s PCIe"), 12.0);
        assert_eq!(of("16.0 GT/s PCIe"), 24.0);
        assert_eq!(of("32 GT/s"), 48.0);
        assert_eq!(PciSpeed::parse(""), None);
        assert_eq!(PciSpeed::parse("Unknown"), None);
    }

    #[test]
    fn links_of_gpus() {
        let nvidia = |capability| gpu_link(GpuGeneration::Nvidia { capability }).gigabytes();
        assert_eq!([60, 70, 80, 86, 90, 100, 120].map(nvidia), [18.0, 20.0, 20.0, 12.0, 20.6, 40.1, 40.1]);
        let amd = |gfx| gpu_link(GpuGeneration::Amd { gfx }).gigabytes();
        assert_eq!([0x906, 0x908, 0x90a, 0x942, 0x950].map(amd), [24.0, 24.0, 36.0, 48.0, 48.0]);
    }
}
