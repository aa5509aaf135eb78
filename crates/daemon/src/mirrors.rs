//! The mirrors in force: those of the configuration, and those that were added since.

use vmlane_api::{Done, ErrorCode, Failure, Mirror, MirrorRequest};
use vmlane_config::{Config, MirrorConfig};
use vmlane_port::MAX_FRAME;
use vmlane_stats::Counters;
use vmlane_switch::{MirrorDirection, MirrorSpec, Switch};

/// All mirrors. Those of the configuration come and go with reloads; others last until they are removed or
/// the daemon ends.
#[derive(Default)]
pub struct Mirrors {
    configured: Vec<MirrorConfig>,
    added: Vec<MirrorConfig>,
}

fn spec(mirror: &MirrorConfig) -> MirrorSpec {
    MirrorSpec {
        name: mirror.name.clone(),
        to: mirror.to.clone(),
        direction: mirror.direction,
        vlan: mirror.vlan,
        snap: mirror.snap.map_or(MAX_FRAME, |snap| snap as usize),
    }
}

/// The same mirror but for what it copies from, which can change while it runs.
fn goes_on(before: &MirrorConfig, after: &MirrorConfig) -> bool {
    *after == MirrorConfig { from: after.from.clone(), ..before.clone() }
}

fn refuse(message: String) -> Failure {
    Failure { code: ErrorCode::BadRequest, message }
}

impl Mirrors {
    fn all(&self) -> Vec<MirrorConfig> {
        self.configured.iter().chain(&self.added).cloned().collect()
    }

    /// Makes the mirrors those of a configuration, and finds the ports of all anew. Returns what was done,
    /// and what was not.
    pub fn change(&mut self, switch: &Switch, config: &Config) -> (Vec<String>, Vec<String>) {
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        let before = std::mem::take(&mut self.configured);
        for mirror in &before {
            let now = config.mirrors.iter().find(|other| other.name == mirror.name);
            if now.is_none_or(|now| !goes_on(mirror, now)) {
                switch.remove_mirror(&mirror.name);
                done.extend(now.is_none().then(|| format!("mirror {:?}: removed", mirror.name)));
            }
        }
        for mirror in &config.mirrors {
            // It was checked among those of the file only.
            let fits = mirror.check(&config.ports(), &self.all());
            if let Err((_, why)) = fits {
                refused.push(format!(
                    "mirror {:?}: {why} (those that were added count, too: `vmlane mirror list`)",
                    mirror.name
                ));
                switch.remove_mirror(&mirror.name);
                continue;
            }
            let same = before.iter().find(|other| goes_on(other, mirror));
            let begun = if same.is_none() { switch.add_mirror(spec(mirror), Vec::new()) } else { Ok(()) };
            match begun {
                Ok(()) => {
                    if same != Some(mirror) {
                        done.push(format!(
                            "mirror {:?}: from {} to {}",
                            mirror.name,
                            mirror.from.join(", "),
                            mirror.to
                        ));
                    }
                    self.configured.push(mirror.clone());
                }
                Err(error) => refused.push(format!("mirror {:?}: no memory for it: {error}", mirror.name)),
            }
        }
        self.find_ports(switch, config);
        (done, refused)
    }

    /// Has each mirror copy from the ports that its sources are now.
    fn find_ports(&self, switch: &Switch, config: &Config) {
        let all = self.all();
        for mirror in &all {
            switch.set_mirror_sources(&mirror.name, mirror.sources(&config.ports(), &all));
        }
    }

    /// Adds one that is of no configuration.
    pub fn add(
        &mut self,
        switch: &Switch,
        config: &Config,
        request: &MirrorRequest,
    ) -> Result<Done, Failure> {
        let MirrorRequest { name, from, to, direction, vlan, snap } = request;
        let direction = match direction.as_deref().map(|word| (word, MirrorDirection::of_name(word))) {
            None => MirrorDirection::default(),
            Some((_, Some(direction))) => direction,
            Some((word, None)) => {
                return Err(refuse(format!(
                    "direction: {word:?} is unknown; use \"in\", \"out\" or \"both\""
                )));
            }
        };
        let (name, to) = (name.clone(), to.clone());
        let mirror = MirrorConfig { name, from: from.clone(), to, direction, vlan: *vlan, snap: *snap };
        let word = mirror.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if mirror.name.is_empty() || mirror.name.len() > 64 || !word {
            let name = &mirror.name;
            return Err(refuse(format!("name: {name:?}; use up to 64 letters, digits, '.', '_' and '-'")));
        }
        mirror
            .check(&config.ports(), &self.all())
            .map_err(|(_, why)| refuse(format!("mirror {:?}: {why}", mirror.name)))?;
        switch.add_mirror(spec(&mirror), Vec::new()).map_err(|error| {
            Failure::internal(format!("mirror {:?}: no memory for it: {error}", mirror.name))
        })?;
        tracing::info!(mirror = mirror.name, from = mirror.from.join(", "), to = mirror.to, "added");
        self.added.push(mirror);
        // The new one's destination is no source of others any more.
        self.find_ports(switch, config);
        Ok(Done {})
    }

    /// Ends one that was added.
    pub fn remove(&mut self, switch: &Switch, config: &Config, name: &str) -> Result<Done, Failure> {
        if self.configured.iter().any(|mirror| mirror.name == name) {
            return Err(refuse(format!(
                "mirror {name:?} is of the configuration; take it out there and run `vmlane reload`"
            )));
        }
        let Some(at) = self.added.iter().position(|mirror| mirror.name == name) else {
            let names: Vec<String> = self.added.iter().map(|mirror| mirror.name.clone()).collect();
            let known = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(refuse(format!("there is no mirror {name:?}; added were: {known}")));
        };
        switch.remove_mirror(name);
        self.added.remove(at);
        self.find_ports(switch, config);
        tracing::info!(mirror = name, "removed");
        Ok(Done {})
    }

    /// What the control socket shows.
    pub fn show(&self, switch: &Switch) -> Vec<Mirror> {
        let views = switch.mirror_views();
        let show = |(mirror, configured): (&MirrorConfig, bool)| {
            let view = views.iter().find(|view| view.spec.name == mirror.name)?;
            let counters = view.stats.snapshot();
            let drops = || counters.iter().filter(|(name, value)| name.starts_with("drop_") && *value > 0);
            Some(Mirror {
                name: mirror.name.clone(),
                from: mirror.from.clone(),
                ports: view.from.clone(),
                to: mirror.to.clone(),
                direction: mirror.direction.name().into(),
                vlan: mirror.vlan,
                snap: mirror.snap,
                configured,
                frames: view.stats.tx_frames.get(),
                bytes: view.stats.tx_bytes.get(),
                dropped: drops().map(|(_, value)| value).sum(),
                drops: drops().copied().collect(),
            })
        };
        let configured = self.configured.iter().map(|mirror| (mirror, true));
        configured.chain(self.added.iter().map(|mirror| (mirror, false))).filter_map(show).collect()
    }
}
