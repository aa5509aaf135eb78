//! Another user of the host, as another process: the test program again. It carries out commands, a line
//! each, and answers with a line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::Process;

const WHO: &str = "VMLANE_TEST_VISITOR";
/// Begins a line that is an answer: the test runner prints other lines, too.
const ANSWER: &str = "ANSWER ";

/// Another user.
#[derive(Debug)]
pub struct Visitor {
    _process: Process,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Visitor {
    /// `test`: the ignored test of this program that calls [`visit`].
    pub fn new(test: &str, uid: u32, groups: &[u32]) -> Visitor {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture", "--quiet"]);
        let who: Vec<String> = [uid].iter().chain(groups).map(u32::to_string).collect();
        command.env(WHO, who.join(" ")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process(command.spawn().unwrap());
        let orders = process.0.stdin.take().expect("a pipe");
        let answers = BufReader::new(process.0.stdout.take().expect("a pipe"));
        Visitor { _process: process, orders, answers }
    }

    pub fn order(&mut self, order: &str, path: &Path) {
        writeln!(self.orders, "{order} {}", path.display()).unwrap();
    }

    pub fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the visitor has ended");
            if let Some((_, answer)) = line.trim_end().split_once(ANSWER) {
                return answer.to_owned();
            }
        }
    }

    pub fn ask(&mut self, order: &str, path: &Path) -> String {
        self.order(order, path);
        self.answer()
    }
}

/// Becomes the user of [`Visitor::new`], and obeys. It needs to be root's.
pub fn visit(mut obey: impl FnMut(&str, &Path) -> String) {
    let who = std::env::var(WHO).expect("run by other tests only");
    let mut numbers = who.split(' ').map(|number| number.parse::<u32>().unwrap());
    let uid = numbers.next().expect("a user");
    let groups: Vec<Gid> = numbers.map(Gid::from_raw).collect();
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    set_thread_groups(&groups).unwrap();
    set_thread_res_gid(group, group, group).unwrap();
    set_thread_res_uid(user, user, user).unwrap();
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        let (order, path) = order.split_once(' ').expect("an order and a path");
        println!("{ANSWER}{}", obey(order, Path::new(path)));
    }
}
