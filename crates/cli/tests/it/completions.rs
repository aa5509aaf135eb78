//! Completion in real shells: the scripts of `vmlane completions` complete names, from a daemon, from a
//! configuration, and nothing where a daemon does not answer; they never print errors.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use vmlane_testkit::{Daemon, skipped, wait_until};

use crate::common::{self, VMLANE};

const CONFIG: &str = "\
[[switch]]
name = \"storage\"
[[port_group]]
name = \"prod\"
[[vm]]
name = \"web\"
cid = 3
nic = [ { model = \"virtio-net\" }, { model = \"vmxnet3\", port_group = \"prod\" } ]
[[vm]]
name = \"web2\"
cid = 4
nic = [ { model = \"vmxnet3\" }, { model = \"vmxnet3\", switch = \"storage\" } ]
[[wire]]
name = \"l1\"
ends = [\"web/nic0\", \"web2/nic0\"]
";

/// Shells, and what prints all that one offers at the end of a line, which is the last argument.
const SHELLS: [(&str, &[&str]); 3] = [
    ("bash", &["bash", "--norc", "-c", BASH, "bash"]),
    ("zsh", &["bash", "--norc", "-c", ZSH, "bash"]),
    ("fish", &["fish", "--no-config", "-c", FISH]),
];

const BASH: &str = r#"
    set -f
    source <(vmlane completions bash)
    COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
    read -ra COMP_WORDS <<<"$1"
    [[ $1 != *' ' ]] || COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    $(complete -p vmlane | sed 's/.*-F \([^ ]*\).*/\1/') vmlane "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    printf '%s\n' "${COMPREPLY[@]}"
"#;

/// zsh completes on a terminal only. The script is where zsh finds those of packages, and the key is pressed
/// once: zsh has not loaded it before.
const ZSH: &str = r#"
    mkdir -p ~/functions
    vmlane completions zsh >~/functions/_vmlane
    cat >~/.zshrc <<'END'
        fpath=(~/functions $fpath)
        autoload -Uz compinit
        compinit -u -D
        zstyle ':completion:*' completer _complete
        # With these options, it compares words and offers none.
        compadd () {
            local -a met
            (( ${@[(I)-[AOD]]} )) || { builtin compadd -A met "$@"; print -rl -- $met >>~/offered }
            builtin compadd "$@"
        }
        zle-line-init () { zle complete-word; exit }
        zle -N zle-line-init
        print -rz -- $TYPED
END
    : >~/offered
    TYPED=$1 script -qec 'zsh -o no_global_rcs -i' /dev/null >/dev/null
    cat ~/offered
"#;

/// A description stands behind a tabulator.
const FISH: &str = "vmlane completions fish | source; complete -C $argv[1] | string replace -r '\\t.*' ''";

/// What a shell offers at the end of a line, sorted; the last word may be empty. `asked`: the runtime
/// directory.
fn offered(shell: &[&str], line: &str, asked: &Path, configuration: &Path) -> Vec<String> {
    let folder = Path::new(VMLANE).parent().unwrap().display().to_string();
    let (program, words) = shell.split_first().unwrap();
    let mut ask = Command::new(program);
    ask.args(words).arg(line).stdin(Stdio::null());
    ask.env("PATH", format!("{folder}:{}", std::env::var("PATH").unwrap())).env_remove("ZDOTDIR");
    ask.env("VMLANE_RUNTIME_DIR", asked).env("HOME", configuration.parent().unwrap());
    let ran = ask.output().unwrap();
    let errors = String::from_utf8(ran.stderr).unwrap();
    // bash itself states that there is no line to edit.
    let errors: Vec<&str> = errors.lines().filter(|line| !line.contains("compopt")).collect();
    assert!(errors.is_empty(), "{line}: {errors:?}");
    let mut words: Vec<String> = String::from_utf8(ran.stdout).unwrap().lines().map(str::to_owned).collect();
    words.retain(|word| !word.is_empty() && !word.starts_with('-'));
    words.sort();
    words
}

fn is_installed(shell: &str) -> bool {
    Command::new(shell).arg("--version").stdout(Stdio::null()).status().is_ok()
}

fn offers(place: &Daemon, rows: &[(&str, &[&str])]) {
    let config = place.config();
    for (shell, ask) in SHELLS {
        if !is_installed(shell) {
            skipped(&format!("{shell} is not installed"));
            continue;
        }
        for (line, names) in rows {
            let line = line.replace("CONFIG", config.to_str().unwrap());
            // A host that is busy may need longer than a shell may wait.
            wait_until(&format!("{line:?} is completed by {names:?} in {shell}"), || {
                offered(ask, &line, &place.runtime(), &config) == *names
            });
        }
    }
}

#[test]
fn names_are_those_of_the_daemon() {
    let daemon = common::daemon(CONFIG);
    offers(
        &daemon,
        &[
            ("vmlane sta", &["stats", "status"]),
            ("vmlane attach w", &["web", "web2"]),
            ("vmlane qemu-args web2", &["web2"]),
            ("vmlane stats web2", &["web2"]),
            ("vmlane release x", &[]),
            ("vmlane capture web/", &["web/nic0", "web/nic1"]),
            ("vmlane link set web/", &["web/nic0", "web/nic1"]),
            ("vmlane wire cut ", &["l1"]),
            ("vmlane capture --switch s", &["storage"]),
            ("vmlane mirror add p", &["prod"]),
            ("vmlane completions f", &["fish"]),
        ],
    );
}

#[test]
fn without_a_daemon_names_are_those_of_the_configuration() {
    let place = common::place(CONFIG);
    offers(
        &place,
        &[
            ("vmlane qemu-args --config CONFIG w", &["web", "web2"]),
            ("vmlane qemu-args --config=CONFIG web2", &["web2"]),
            ("vmlane qemu-args --config /nowhere w", &[]),
        ],
    );
    // A wrong line is no reason for an error either.
    offers(&place, &[("vmlane nothing x", &[])]);
}

#[test]
fn a_daemon_that_does_not_answer_is_not_waited_for() {
    let place = common::place(CONFIG);
    std::fs::create_dir_all(place.runtime()).unwrap();
    let _silent = UnixListener::bind(place.run("control.sock")).unwrap();
    offers(&place, &[("vmlane qemu-args --config CONFIG w", &["web", "web2"])]);
}
