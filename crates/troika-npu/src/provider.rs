//! Which compiler, and which device of it: `npu[:PROVIDER[:DEVICE]]`.

use std::fmt;

use crate::profiling::ProfilingLevel;

/// Whose compiler and driver: an execution provider of ONNX Runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provider {
    /// ONNX Runtime's own kernels, on the CPU.
    Reference,
    /// Intel's OpenVINO.
    OpenVino,
    /// Qualcomm's QNN.
    Qnn,
    /// Apple's Core ML, which takes packages, without ONNX Runtime.
    CoreMl,
    /// AMD's Vitis AI, part of a runtime of AMD's own.
    VitisAi,
}

impl Provider {
    /// All of them.
    pub const ALL: [Provider; 5] = [
        Provider::Reference,
        Provider::OpenVino,
        Provider::Qnn,
        Provider::CoreMl,
        Provider::VitisAi,
    ];

    /// The name in [`NpuSpec`].
    pub fn name(self) -> &'static str {
        match self {
            Provider::Reference => "reference",
            Provider::OpenVino => "openvino",
            Provider::Qnn => "qnn",
            Provider::CoreMl => "coreml",
            Provider::VitisAi => "vitisai",
        }
    }

    /// Its name in ONNX Runtime.
    pub(crate) fn ep(self) -> &'static str {
        match self {
            Provider::Reference => "CPUExecutionProvider",
            Provider::OpenVino => "OpenVINOExecutionProvider",
            Provider::Qnn => "QNNExecutionProvider",
            Provider::CoreMl => "Core ML",
            Provider::VitisAi => "VitisAIExecutionProvider",
        }
    }

    /// Its plugin: the Python package, and the library in it.
    pub(crate) fn plugin(self) -> Option<Plugin> {
        let plugin = |package, folder, library| Some(Plugin { package, folder, library });
        match self {
            Provider::Reference | Provider::CoreMl | Provider::VitisAi => None,
            Provider::OpenVino => plugin(
                "onnxruntime-ep-openvino==1.8.1",
                "onnxruntime_ep_openvino",
                "onnxruntime_providers_openvino_plugin",
            ),
            Provider::Qnn => {
                plugin("onnxruntime-qnn==2.7.0", "onnxruntime_qnn", "onnxruntime_providers_qnn")
            }
        }
    }

    /// What its profiler can report: Qualcomm's has levels. The runtime's own sees nodes where it
    /// runs them itself, and elsewhere the compiled graph as one.
    pub(crate) fn profiling_levels(self) -> &'static [ProfilingLevel] {
        match self {
            Provider::Qnn => &ProfilingLevel::ALL,
            Provider::Reference => &[ProfilingLevel::Basic, ProfilingLevel::Detailed],
            Provider::OpenVino | Provider::CoreMl | Provider::VitisAi => &[ProfilingLevel::Basic],
        }
    }

    /// Whether its compiler is known to multiply with weights as they are stored, in blocks.
    pub(crate) fn keeps_blocks(self) -> bool {
        matches!(self, Provider::Reference | Provider::OpenVino)
    }

    /// The names of its devices in [`NpuSpec`], the preferred one first.
    pub(crate) fn hardware(self) -> &'static [Hardware] {
        match self {
            Provider::Reference => &[Hardware::Cpu],
            Provider::OpenVino => &[Hardware::Npu, Hardware::Cpu],
            Provider::Qnn => &[Hardware::Htp, Hardware::Emulator],
            Provider::CoreMl | Provider::VitisAi => &[Hardware::Npu],
        }
    }
}

/// A package with a provider's plugin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plugin {
    /// The package, as pip takes it.
    pub package: &'static str,
    /// Its folder beside ONNX Runtime's.
    pub folder: &'static str,
    /// The library's name, without what the system adds.
    pub library: &'static str,
}

/// What runs the graphs of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hardware {
    /// A neural processor.
    Npu,
    /// The CPU.
    Cpu,
    /// Qualcomm's tensor processor.
    Htp,
    /// Its emulation on the CPU: exact, and slow. It is never chosen by itself.
    Emulator,
}

impl Hardware {
    /// The name in [`NpuSpec`].
    pub fn name(self) -> &'static str {
        match self {
            Hardware::Npu => "npu",
            Hardware::Cpu => "cpu",
            Hardware::Htp => "htp",
            Hardware::Emulator => "emulator",
        }
    }

    /// Whether it is a neural processor, and no stand-in.
    pub fn is_real(self) -> bool {
        matches!(self, Hardware::Npu | Hardware::Htp)
    }
}

/// An NPU in the user's notation: `npu`, `npu:openvino` or `npu:openvino:cpu`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NpuSpec {
    /// The provider; `None`: the first that has a real NPU.
    pub provider: Option<Provider>,
    /// The provider's device; `None`: its NPU, or the CPU of the reference. The CPU of another
    /// provider has to be named.
    pub hardware: Option<Hardware>,
}

impl NpuSpec {
    /// Reads what follows `npu`: nothing, `:PROVIDER` or `:PROVIDER:DEVICE`.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<NpuSpec, String> {
        let Some(text) = text.strip_prefix(':') else {
            return match text {
                "" => Ok(NpuSpec::default()),
                _ => Err("it must be [NAME=]npu[:PROVIDER[:DEVICE]]".into()),
            };
        };
        let both = text.split_once(':').map(|(provider, hardware)| (provider, Some(hardware)));
        let (provider, hardware) = both.unwrap_or((text, None));
        let Some(known) = Provider::ALL.into_iter().find(|p| p.name() == provider) else {
            let all = Provider::ALL.map(Provider::name).join(", ");
            return Err(format!("there is no provider {provider:?}; the providers are {all}"));
        };
        let of_name = |name: &str| {
            let all = known.hardware();
            let found = all.iter().copied().find(|h| h.name() == name);
            found.ok_or_else(|| {
                let all: Vec<&str> = all.iter().map(|h| h.name()).collect();
                let all = all.join(", ");
                format!("provider {provider} has no device {name:?}; it has {all}")
            })
        };
        Ok(NpuSpec { provider: Some(known), hardware: hardware.map(of_name).transpose()? })
    }
}

impl fmt::Display for NpuSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("npu")?;
        for part in [self.provider.map(Provider::name), self.hardware.map(Hardware::name)] {
            part.map_or(Ok(()), |part| write!(f, ":{part}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::NpuSpec;

    #[test]
    fn specs_are_read_as_they_are_written() {
        for text in ["", ":reference", ":openvino:cpu", ":openvino:npu", ":qnn:emulator", ":coreml"]
        {
            let spec = NpuSpec::parse(text).unwrap();
            assert_eq!(spec.to_string(), format!("npu{text}"));
        }
        for (wrong, says) in [
            ("x", "must be"),
            (":", "no provider \"\""),
            (":cuda", "reference, openvino, qnn, coreml, vitisai"),
            (":openvino:", "no device \"\""),
            (":qnn:npu", "it has htp, emulator"),
        ] {
            let why = NpuSpec::parse(wrong).unwrap_err();
            assert!(why.contains(says), "{wrong}: {why}");
        }
    }
}
