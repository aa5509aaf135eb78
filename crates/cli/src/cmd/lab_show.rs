//! What `vmlane lab` prints: status, lists, logs.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use vmlane_lab::{Lab, Status};

pub fn status(status: &Status, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(status)?);
        return Ok(());
    }
    let mut runs: Vec<String> = Vec::new();
    for guest in &status.guests {
        let machine = guest.machine;
        let run = if machine.is_qemu() {
            format!("QEMU {}, {machine}, {}", status.qemu_version, status.accelerator)
        } else {
            "User Mode Linux".to_owned()
        };
        if !runs.contains(&run) {
            runs.push(run);
        }
    }
    println!("lab {} ({})", status.name, runs.join("; "));
    for guest in &status.guests {
        let mut line = format!("  {}  {:7}  kernel {}", guest.name, guest.state, guest.kernel);
        if let Some(cid) = guest.cid {
            line += &format!("  cid {cid}");
        }
        for nic in &guest.nics {
            line += &format!("  {} {}", nic.device, nic.ipv4.split('/').next().unwrap_or_default());
        }
        if let Some(seconds) = guest.boot_seconds {
            line += &format!("  (booted in {seconds:.1} s)");
        }
        println!("{line}");
    }
    if let Some(daemon) = &status.daemon {
        println!("  daemon at {}", daemon.runtime_dir.display());
    }
    Ok(())
}

pub fn list(json: bool) -> Result<()> {
    let labs = vmlane_lab::list()?;
    if json {
        let list: Vec<_> =
            labs.iter().map(|(name, status)| json!({"name": name, "status": status})).collect();
        println!("{}", serde_json::to_string_pretty(&json!({"version": 1, "labs": list}))?);
        return Ok(());
    }
    for (name, lab) in labs {
        match lab {
            Some(lab) => status(&lab, false)?,
            None => println!("lab {name}: does not answer; vmlane lab down {name} cleans up"),
        }
    }
    Ok(())
}

pub fn logs(name: &str, of: Option<&str>, follow: bool) -> Result<()> {
    let lab = Lab::open(name)?;
    let Some(of) = of else {
        if follow {
            bail!("--follow: say which log to follow: a guest, daemon or supervisor");
        }
        print!("{}", lab.logs());
        return Ok(());
    };
    let path: PathBuf = lab.log(of);
    let mut file =
        File::open(&path).with_context(|| format!("no log of {of:?}: give a guest, daemon or supervisor"))?;
    loop {
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        std::io::stdout().write_all(&text)?;
        std::io::stdout().flush()?;
        if !follow || !path.exists() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
