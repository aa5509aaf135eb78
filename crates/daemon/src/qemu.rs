//! How QEMU (10.1 or later) attaches a configured VM.

use crate::paths::{Paths, TooLong};

/// Milliseconds QEMU waits for an answer. Its default of 5 s is fatal to the guest when the host
/// is suspended or the daemon is looked at with a debugger.
const MESSAGE_TIMEOUT_MS: u32 = 60_000;

/// The arguments, one string each. They add to what the caller has: a machine type, an
/// accelerator, disks. QEMU merges several `-machine` options into one.
pub fn arguments(paths: &Paths, vm: &str, memory_mib: u64) -> Result<Vec<String>, TooLong> {
    let socket = paths.vmci(vm)?;
    // The daemon copies from and to the guest's memory, so that must be a file it can map.
    let memory = format!("memory-backend-memfd,id=vmlane-mem,size={memory_mib}M,share=on");
    // A structured property such as `socket` can only be given as JSON. With posted writes a guest
    // would go on before a command of its has been carried out.
    let device = format!(
        "{{\"driver\":\"vfio-user-pci\",\"socket\":{{\"type\":\"unix\",\"path\":{}}},\
         \"x-no-posted-writes\":true,\"x-msg-timeout\":{MESSAGE_TIMEOUT_MS}}}",
        serde_json::Value::from(socket.to_string_lossy())
    );
    let memory_size = format!("{memory_mib}M");
    let options = [
        ("-object", memory.as_str()),
        ("-machine", "memory-backend=vmlane-mem"),
        ("-m", &memory_size),
        ("-device", &device),
    ];
    Ok(options.iter().flat_map(|(option, value)| [option.to_string(), value.to_string()]).collect())
}

/// A word as a shell must read it.
pub fn shell_quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=+,./:@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_device_is_json_with_the_socket_and_the_timeouts() {
        let paths = Paths::new(Path::new("/run/with \"quotes\"")).unwrap();
        let arguments = arguments(&paths, "web", 512).unwrap();
        assert_eq!(
            arguments[..7],
            [
                "-object",
                "memory-backend-memfd,id=vmlane-mem,size=512M,share=on",
                "-machine",
                "memory-backend=vmlane-mem",
                "-m",
                "512M",
                "-device",
            ]
        );
        let device: serde_json::Value = serde_json::from_str(&arguments[7]).unwrap();
        assert_eq!(
            device,
            serde_json::json!({
                "driver": "vfio-user-pci",
                "socket": { "type": "unix", "path": "/run/with \"quotes\"/vm/web/vmci.sock" },
                "x-no-posted-writes": true,
                "x-msg-timeout": 60000,
            })
        );
    }

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        for word in ["", "plain-1.0/x=y,z:1", "two words", "it's", "{\"a\":1}", "$HOME `id` \\ \n*", "~"] {
            let script = format!("printf %s {}", shell_quoted(word));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
        assert_eq!(shell_quoted("-m"), "-m");
    }
}
