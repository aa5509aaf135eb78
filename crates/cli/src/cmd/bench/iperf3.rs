//! What users of iperf3 type: options that `vmlane bench` takes under iperf3's names, too, and those for
//! which it has another word, which the error names. netperf's letters keep their meanings: -l, -s and -n
//! are not iperf3's.

use clap::builder::UnknownArgumentValueParser;
use clap::{Arg, ArgAction, Command};

/// Where an option is typed: behind `bench`, `bench server`, or a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Bench,
    Server,
    Test,
}

/// iperf3's names, and the argument of ours that takes them as well (where a test has it).
const TAKEN: [(&[&str], &str); 8] = [
    (&["-t", "--time"], "seconds"),
    (&["-P", "--parallel"], "sessions"),
    (&["-b", "--bitrate"], "rate"),
    (&["-O", "--omit"], "warmup"),
    (&["-N", "--no-delay"], "nodelay"),
    (&["-w", "--window"], "buffers"),
    (&["-J"], "json"),
    (&["--length"], "message"),
];

/// iperf3's names, the value that they take there, and what to write instead.
const REFUSED: [(At, &[&str], Option<&str>, &str); 9] = [
    (At::Bench, &["-s", "--server"], None, "vmlane bench server"),
    (At::Bench, &["-c", "--client"], Some("HOST"), "vmlane bench stream --to tcp:HOST"),
    (At::Server, &["-s", "--server"], None, "vmlane bench server"),
    (At::Server, &["-p", "--port"], Some("PORT"), "--listen tcp:0.0.0.0:PORT"),
    (At::Server, &["-B", "--bind"], Some("HOST"), "--listen tcp:HOST"),
    (At::Test, &["-c", "--client"], Some("HOST"), "--to tcp:HOST"),
    (At::Test, &["-p", "--port"], Some("PORT"), "--to tcp:HOST:PORT"),
    (At::Test, &["-u", "--udp"], None, "--to udp:HOST"),
    (At::Test, &["--bidir"], None, "vmlane bench bidir"),
];

/// `bench` with these options.
pub fn with_options(bench: Command) -> Command {
    let help = bench.get_after_help().map(ToString::to_string).unwrap_or_default();
    let bench = bench.mut_subcommands(|command| match command.get_name() {
        "server" => refusing(At::Server, command),
        _ => refusing(At::Test, taking(command)),
    });
    refusing(At::Bench, bench).after_help(format!("{help}\n\n{}", summary()))
}

/// A test with iperf3's names for the arguments that it has, unless it has them for another one.
fn taking(test: Command) -> Command {
    let letters: Vec<char> = test.get_arguments().filter_map(Arg::get_short).collect();
    test.mut_args(|arg| {
        let names = TAKEN.iter().filter(|(_, id)| arg.get_id() == *id).flat_map(|(names, _)| *names);
        names.collect::<Vec<_>>().into_iter().fold(arg, |arg, name| match short(name) {
            Some(letter) if letters.contains(&letter) => arg,
            Some(letter) => arg.visible_short_alias(letter),
            None => arg.alias(name.trim_start_matches('-')),
        })
    })
}

/// A command that reports what to write instead.
fn refusing(at: At, command: Command) -> Command {
    let rows = REFUSED.iter().filter(|(place, ..)| *place == at);
    let names =
        rows.flat_map(|(_, names, value, instead)| names.iter().map(move |name| (name, value, instead)));
    command.args(names.map(|(name, value, instead)| {
        let tip = format!("{name} is iperf3's: write `{instead}`");
        let arg = Arg::new(*name).hide(true);
        let arg = arg.value_parser(UnknownArgumentValueParser::suggest(tip));
        let arg = match value {
            Some(value) => arg.value_name(*value),
            None => arg.action(ArgAction::SetTrue),
        };
        match short(name) {
            Some(letter) => arg.short(letter),
            None => arg.long(name.trim_start_matches('-')),
        }
    }))
}

/// The letter of `-x`; None: the name is a long one.
fn short(name: &str) -> Option<char> {
    name.strip_prefix('-').filter(|rest| rest.len() == 1)?.chars().next()
}

/// What `bench --help` states about them.
fn summary() -> String {
    let taken: Vec<&str> = TAKEN.iter().filter_map(|(names, _)| names.first().copied()).collect();
    let rows = REFUSED.iter().filter(|(at, ..)| *at == At::Test);
    let instead: Vec<String> = rows
        .map(|(_, names, value, instead)| {
            let value = value.map(|value| format!(" {value}")).unwrap_or_default();
            format!("`{instead}` for {}{value}", names.first().copied().unwrap_or_default())
        })
        .collect();
    format!(
        "From iperf3: {}, -i and -R are taken; write {}. The letters -l, -m, -s, -S and -n are netperf's.",
        taken.join(", "),
        instead.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<String, clap::Error> {
        use clap::FromArgMatches;
        let matches = crate::command().try_get_matches_from(line.split(' '))?;
        Ok(format!("{:?}", crate::Cli::from_arg_matches(&matches)?.command))
    }

    #[test]
    fn options_of_iperf3_mean_what_ours_mean() {
        let test = |options: &str| parsed(&format!("vmlane bench stream --to tcp:h {options}")).unwrap();
        let mut names: Vec<&str> = TAKEN.iter().flat_map(|(names, _)| names.iter().copied()).collect();
        for (iperf3, ours) in [
            ("-t 5", "-l 5"),
            ("--time 5", "-l 5"),
            ("-P 4", "-n 4"),
            ("--parallel 4", "-n 4"),
            ("-b 100M", "--rate 100M"),
            ("--bitrate 1G", "--rate 1G"),
            ("-O 2", "--warmup 2"),
            ("--omit 2", "--warmup 2"),
            ("-N", "-D"),
            ("--no-delay", "-D"),
            ("-w 1M", "--buffers 1M"),
            ("--window 1M", "--buffers 1M"),
            ("-J", "--json"),
            ("--length 8k", "-m 8k"),
            ("-R", "--reverse"),
            ("-i 1", "--interval 1"),
        ] {
            assert_eq!(test(iperf3), test(ours), "{iperf3}");
            assert_ne!(test(iperf3), test("-4"), "{iperf3}");
            names.retain(|name| !iperf3.starts_with(name));
        }
        assert!(names.is_empty(), "not tested: {names:?}");
    }

    #[test]
    fn letters_of_netperf_keep_their_meanings() {
        let stream = parsed("vmlane bench stream --to tcp:h -l 9 -m 8k -M 4k -s 1M -S 2M -n 3 -D").unwrap();
        for words in [
            "seconds: 9.0",
            "message: Some(8192)",
            "receive: Some(4096)",
            "local_buffer: Some(1048576)",
            "remote_buffer: Some(2097152)",
            "sessions: 3",
            "nodelay: true",
        ] {
            assert!(stream.contains(words), "{words}: {stream}");
        }
        let rr = parsed("vmlane bench rr --to tcp:h -r 1,2 -b 7").unwrap();
        assert!(rr.contains("size: (1, 2)") && rr.contains("in_flight: 7"), "{rr}");
    }

    #[test]
    fn what_is_written_otherwise_is_refused_with_the_right_word() {
        for (at, names, value, instead) in REFUSED {
            let commands: &[&str] = match at {
                At::Bench => &["bench"],
                At::Server => &["bench server"],
                At::Test => &["bench stream", "bench maerts", "bench bidir", "bench rr", "bench crr"],
            };
            for (command, name) in
                commands.iter().flat_map(|command| names.iter().map(move |name| (command, name)))
            {
                let value = value.map(|value| format!(" {value}")).unwrap_or_default();
                let error = parsed(&format!("vmlane {command} {name}{value}")).unwrap_err();
                let text = error.to_string();
                assert_eq!(error.exit_code(), 2);
                assert!(
                    text.contains(&format!("{name} is iperf3's: write `{instead}`")),
                    "{command} {name}: {text}"
                );
            }
        }
    }
}
