//! What other users have put where vmlane searches: it is named, and not used. Needs root, to be several
//! users.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use vmlane_testkit::{Daemon, Process, Ran, contains_all, skipped, wait_until};

use crate::common::{VMLANE, place};

/// The user "nobody".
const FOREIGN: u32 = 65_534;
const CONFIG: &str = "[[vm]]\nname = \"web\"\ncid = 3\n";
const PLANTED: &str = "[[vm]]\nname = \"evil\"\ncid = 9\n";

/// A directory in which any user can make files, as in `/tmp`. None: this process cannot be several users.
fn shared() -> Option<tempfile::TempDir> {
    if !rustix::process::geteuid().is_root() {
        skipped("only root can be several users");
        return None;
    }
    let base = tempfile::tempdir().unwrap();
    mode(base.path(), 0o1777);
    Some(base)
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Makes a directory with these files. All of it is another user's.
fn plant(directory: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(directory).unwrap();
    let mut made = vec![directory.to_owned()];
    for (name, text) in files {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        made.extend([path.parent().unwrap().to_owned(), path.clone()]);
    }
    made.iter().for_each(|path| chown(path, Some(FOREIGN), Some(FOREIGN)).unwrap());
}

/// A command that has to end by itself, with nothing of this process's environment but a PATH.
fn run(mut command: Command, variables: &[(&str, &OsStr)]) -> Ran {
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").envs(variables.iter().copied());
    Process(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .finish()
}

/// `vmlane run` of a program that prints which library it has.
fn preloaded(program: &Path, variables: &[(&str, &OsStr)]) -> Ran {
    let mut command = Command::new(program);
    command.args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    run(command, variables)
}

fn files(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

#[test]
fn a_library_is_loaded_from_no_directory_of_another_user() {
    let Some(base) = shared() else { return };
    let path = |name: &str| base.path().join(name);
    // Without a home, nothing is searched for in the temporary directory.
    plant(&path("vmlane-0"), &[]);
    mode(&path("vmlane-0"), 0o777);
    let ran = preloaded(Path::new(VMLANE), &[("TMPDIR", base.path().as_os_str())]);
    ran.fails(1, &["libvmlane_vsock.so", "XDG_CACHE_HOME", "HOME", "install"]);
    assert_eq!(files(&path("vmlane-0")), 0);
    // Another user's home, or cache.
    plant(&path("home"), &[]);
    plant(&path("cache"), &[("vmlane/lib/libvmlane_vsock.so.0", "not a library")]);
    for (variable, name) in [("HOME", "home"), ("XDG_CACHE_HOME", "cache")] {
        let ran = preloaded(Path::new(VMLANE), &[(variable, path(name).as_os_str())]);
        let shown = path(name).display().to_string();
        ran.fails(1, &[&shown, "belongs to user 65534", "mode 0755", "XDG_CACHE_HOME"]);
    }
    assert_eq!(files(&path("home")), 0);
    // Its link to a directory of root's is as little root's.
    fs::create_dir(path("own")).unwrap();
    symlink(path("own"), path("link")).unwrap();
    std::os::unix::fs::lchown(path("link"), Some(FOREIGN), Some(FOREIGN)).unwrap();
    let ran = preloaded(Path::new(VMLANE), &[("HOME", path("link").as_os_str())]);
    ran.fails(1, &["is a link of user 65534"]);
    assert_eq!(files(&path("own")), 0);
}

#[test]
fn a_library_in_ones_own_cache_is_what_this_program_has_whatever_was_in_its_place() {
    let Some(base) = shared() else { return };
    let home = base.path().join("home");
    fs::create_dir(&home).unwrap();
    let library = home.join(".cache/vmlane/lib/libvmlane_vsock.so.0");
    let variables = [("HOME", home.as_os_str())];
    let ours =
        || assert_eq!(preloaded(Path::new(VMLANE), &variables).good(), format!("{}\n", library.display()));
    ours();
    let right = fs::read(&library).unwrap();
    assert!(right.starts_with(b"\x7fELF"));
    let elsewhere = base.path().join("elsewhere");
    fs::write(&elsewhere, &right).unwrap();
    let remove = || fs::remove_file(&library).unwrap();
    let wrong: [&dyn Fn(); 4] = [
        &|| fs::write(&library, "").unwrap(),
        &|| mode(&library, 0o777),
        &|| chown(&library, Some(FOREIGN), None).unwrap(),
        &|| {
            remove();
            symlink(&elsewhere, &library).unwrap();
        },
    ];
    for change in wrong {
        change();
        ours();
        let found = fs::symlink_metadata(&library).unwrap();
        assert!(found.is_file() && found.uid() == 0 && found.mode() & 0o022 == 0, "{found:?}");
        assert!(fs::read(&library).unwrap() == right);
    }
    // A pipe is not waited for.
    remove();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &library, fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    ours();
    assert_eq!(files(library.parent().unwrap()), 1, "nothing is left beside it");
}

#[test]
fn the_installed_library_needs_no_home_and_is_roots() {
    let Some(base) = shared() else { return };
    let prefix = base.path().join("usr");
    for name in ["bin", "lib/vmlane"] {
        fs::create_dir_all(prefix.join(name)).unwrap();
    }
    let (program, library) = (prefix.join("bin/vmlane"), prefix.join("lib/vmlane/libvmlane_vsock.so.0"));
    // By another process: one that a test beside this one forks would have the file open for writing.
    assert!(Command::new("cp").arg(VMLANE).arg(&program).status().unwrap().success());
    let mut write = Command::new(VMLANE);
    write.args(["run", "--write-library"]).arg(library.parent().unwrap());
    run(write, &[]).good();
    assert_eq!(preloaded(&program, &[]).good(), format!("{}\n", library.display()));
    mode(&library, 0o666);
    preloaded(&program, &[]).fails(1, &[library.to_str().unwrap(), "mode 0666", "XDG_CACHE_HOME"]);
    mode(&library, 0o644);
    chown(&library, Some(FOREIGN), None).unwrap();
    preloaded(&program, &[]).fails(1, &["belongs to user 65534", "XDG_CACHE_HOME"]);
}

/// The error of a daemon that must not start.
#[track_caller]
fn refused(daemon: &Daemon, more: &[&str], words: &[&str]) {
    let mut command = daemon.daemon_command();
    command.args(more);
    let ran = run(command, &[]);
    assert!(!ran.succeeded(), "{ran:?}");
    contains_all(&ran.err, words);
    assert!(!daemon.run("vm").exists() && !daemon.run("keeper.sock").exists(), "it has served there");
}

#[test]
fn a_runtime_directory_that_others_can_change_is_not_served() {
    let Some(_base) = shared() else { return };
    let daemon = place(CONFIG);
    let runtime = daemon.runtime();
    let shown = runtime.display().to_string();
    plant(&runtime, &[("vms.d/evil.toml", PLANTED)]);
    mode(&runtime, 0o777);
    for more in [&[][..], &["--replace"], &["--no-confine"]] {
        refused(
            &daemon,
            more,
            &[&shown, "belongs to user 65534", "mode 0777", "root or user 0", "name another"],
        );
    }
    // One that answers there is not asked.
    let _answers = UnixListener::bind(daemon.run("control.sock")).unwrap();
    refused(&daemon, &["--replace"], &["belongs to user 65534"]);
    let can_replace = run(daemon.configured(&["daemon", "--can-replace"]), &[]);
    can_replace.fails(1, &[&shown, "belongs to user 65534"]);
    let keeper = run(daemon.command(&["keeper"]), &[]);
    assert!(!keeper.succeeded() && keeper.err.contains("belongs to user 65534"), "{keeper:?}");
    // What others can write is not served although it is root's.
    chown(&runtime, Some(0), Some(0)).unwrap();
    refused(&daemon, &[], &[&shown, "owner 0, mode 0777", "chmod go-w"]);
    mode(&runtime, 0o1777);
    refused(&daemon, &[], &["mode 1777"]);
    mode(&runtime, 0o770);
    refused(&daemon, &[], &["mode 0770"]);
}

#[test]
fn a_runtime_directory_below_one_of_another_user_is_not_served() {
    let Some(base) = shared() else { return };
    let theirs = base.path().join("theirs");
    plant(&theirs, &[]);
    let config = base.path().join("vmlane.toml");
    fs::write(&config, CONFIG).unwrap();
    let runtime = theirs.join("run");
    let start = |runtime: &Path| {
        let mut command = Command::new(VMLANE);
        command.arg("daemon").arg("--config").arg(&config).arg("--runtime-dir").arg(runtime);
        run(command, &[])
    };
    let words = [theirs.to_str().unwrap(), runtime.to_str().unwrap(), "belongs to user 65534"];
    start(&runtime).fails(1, &words);
    fs::create_dir(&runtime).unwrap();
    start(&runtime).fails(1, &words);
    let link = base.path().join("link");
    symlink(&runtime, &link).unwrap();
    start(&link).fails(1, &[link.to_str().unwrap(), "is a link"]);
    assert_eq!(files(&runtime), 0);
}

#[test]
fn a_directory_that_the_operator_opened_for_others_is_served_closed() {
    let Some(_base) = shared() else { return };
    let daemon = place(CONFIG);
    fs::create_dir(daemon.runtime()).unwrap();
    mode(&daemon.runtime(), 0o755);
    daemon.start();
    // Others get through, as the operator wanted, and write nothing.
    mode(&daemon.runtime(), 0o757);
    daemon.must(&["reload"]);
    wait_until("the mode", || fs::metadata(daemon.runtime()).unwrap().mode() & 0o7777 == 0o755);
}

#[test]
fn daemons_of_several_users_follow_each_other_in_one_directory() {
    let Some(_base) = shared() else { return };
    let daemon = place(CONFIG);
    let owner = |name: &str| fs::metadata(daemon.run(name)).unwrap().uid();
    let add = |name: &str, cid: &str| daemon.must(&["vm", "add", "--name", name, "--cid", cid]);
    daemon.start();
    add("first", "7");
    let own = owner("");
    assert_ne!(own, 0);
    // It takes the same number, is followed by one of a user with an account, and by some that stay root.
    daemon.start_with(&["--replace"]);
    assert_eq!((owner(""), owner("vms.d")), (own, own));
    daemon.configure(&format!("[daemon]\nuser = \"nobody\"\n{CONFIG}"));
    daemon.start_with(&["--replace"]);
    add("second", "8");
    assert_eq!((owner(""), owner("vms.d")), (FOREIGN, FOREIGN));
    run(daemon.configured(&["daemon", "--can-replace"]), &[]).good();
    daemon.start_with(&["--replace"]);
    daemon.configure(&format!("[daemon]\nuser = \"root\"\n{CONFIG}"));
    // It belonged to the user "nobody": the configuration that names this user is gone.
    let mut command = daemon.daemon_command();
    command.arg("--replace");
    run(command, &[]).fails(1, &["belongs to user 65534"]);
    chown(daemon.runtime(), Some(0), Some(0)).unwrap();
    chown(daemon.run("vms.d"), Some(0), Some(0)).unwrap();
    daemon.start_with(&["--replace"]);
    daemon.start_with(&["--replace", "--no-confine"]);
    assert_eq!((owner(""), owner("vms.d"), owner("vm/web")), (0, 0, 0));
    daemon.configure(CONFIG);
    daemon.start_with(&["--replace"]);
    assert_ne!(owner(""), 0);
    daemon.start_with(&["--replace", "--no-confine"]);
    assert_eq!((owner(""), owner("vms.d"), owner("vm/web")), (0, 0, 0), "taken back");
    let names: Vec<_> = ["first", "second", "web"].map(|name| daemon.vm(name)["name"].clone()).into();
    assert_eq!(names, ["first", "second", "web"]);
}

#[test]
fn files_of_conf_d_and_of_the_state_directory_are_no_other_users() {
    let Some(base) = shared() else { return };
    let path = |name: &str| base.path().join(name);
    fs::write(path("vmlane.toml"), CONFIG).unwrap();
    let check = |more: &[&OsStr]| {
        let mut command = Command::new(VMLANE);
        command.arg("check").arg(path("vmlane.toml")).arg("--runtime-dir").arg(path("run")).args(more);
        run(command, &[])
    };
    check(&[]).good();
    plant(&path("conf.d"), &[("evil.toml", PLANTED)]);
    let directory = path("conf.d").display().to_string();
    let words = [&*directory, "belongs to user 65534", "mode 0755"];
    let named = |ran: Ran, words: &[&str]| {
        assert!(!ran.succeeded(), "{ran:?}");
        contains_all(&ran.printed(), words);
    };
    named(check(&[]), &words);
    // The directory is root's, and the file is not.
    chown(path("conf.d"), Some(0), Some(0)).unwrap();
    named(check(&[]), &[path("conf.d/evil.toml").to_str().unwrap(), "belongs to user 65534"]);
    chown(path("conf.d/evil.toml"), Some(0), Some(0)).unwrap();
    check(&[]).good();
    mode(&path("conf.d"), 0o757);
    named(check(&[]), &[&directory, "mode 0757"]);
    fs::remove_dir_all(path("conf.d")).unwrap();
    // Who names another user's file trusts that user, and no third one.
    chown(path("vmlane.toml"), Some(20_001), Some(20_001)).unwrap();
    plant(&path("conf.d"), &[("10.toml", PLANTED)]);
    named(check(&[]), &["belongs to user 65534"]);
    for name in ["conf.d", "conf.d/10.toml"] {
        chown(path(name), Some(20_001), Some(20_001)).unwrap();
    }
    check(&[]).good();
    // VMs that were added at run time.
    plant(&path("state"), &[("vms.d/other.toml", "[[vm]]\nname = \"other\"\ncid = 5\n")]);
    let directory = path("state");
    let ran = check(&[OsStr::new("--state-dir"), directory.as_os_str()]);
    let directory = directory.to_str().unwrap();
    contains_all(&ran.printed(), &["belongs to user 65534", directory]);
    assert!(!ran.printed().contains("other.toml"), "{ran:?}");
    let daemon = place(CONFIG);
    refused(&daemon, &["--state-dir", directory], &["state directory", "belongs to user 65534"]);
}

#[test]
fn a_lab_uses_no_directory_of_another_user() {
    let Some(base) = shared() else { return };
    let cache: PathBuf = base.path().join("cache");
    plant(&cache, &[]);
    let lab = |words: &[&str]| {
        let mut command = Command::new(VMLANE);
        command.arg("lab").args(words);
        let variables = [("XDG_RUNTIME_DIR", base.path().as_os_str()), ("XDG_CACHE_HOME", cache.as_os_str())];
        run(command, &variables)
    };
    lab(&["list"]).good();
    lab(&["up", "x"]).fails(1, &[cache.to_str().unwrap(), "belongs to user 65534", "XDG_CACHE_HOME"]);
    plant(&base.path().join("vmlane-lab-0"), &[("x/lock", "")]);
    for words in [&["list"][..], &["up", "x"], &["down", "x"], &["exec", "x", "a", "--", "true"]] {
        lab(words).fails(1, &["vmlane-lab-0", "belongs to user 65534"]);
    }
    assert!(base.path().join("vmlane-lab-0/x/lock").exists());
}
