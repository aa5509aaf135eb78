//! What `vmlane lab` prints: status, lists, logs.

use std::io::Write;

use anyhow::{Context, Result};
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

pub fn logs(name: &str, of: Option<&str>) -> Result<()> {
    let lab = Lab::open(name)?;
    let Some(of) = of else {
        print!("{}", lab.logs());
        return Ok(());
    };
    let text = std::fs::read(lab.log(of));
    let text = text.with_context(|| format!("no log of {of:?}: give a guest, daemon or supervisor"))?;
    Ok(std::io::stdout().write_all(&text)?)
}
