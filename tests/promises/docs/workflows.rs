//! What GitHub reads below .github/: workflows and forms have its shape, and the commands of workflows exist.

use std::collections::BTreeSet;
use std::path::Path;

use vmlane_tests::tree::{files, read, root};
use yaml_rust2::{Yaml, YamlLoader};

/// Actions of GitHub's own, by major version: no others are trusted with the checkout.
const ACTIONS: [&str; 4] =
    ["actions/cache@v4", "actions/checkout@v4", "actions/download-artifact@v4", "actions/upload-artifact@v4"];
/// Debian 12 with make, git and one version of Rust: the files of a release depend on it.
const IMAGE: &str = "rust:1.95-bookworm";
const WORKFLOW: [&str; 5] = ["concurrency", "jobs", "name", "on", "permissions"];
const EVENTS: [&str; 4] = ["pull_request", "push", "schedule", "workflow_dispatch"];
const JOB: [&str; 7] =
    ["container", "needs", "permissions", "runs-on", "steps", "strategy", "timeout-minutes"];
const STEP: [&str; 7] = ["env", "if", "name", "run", "uses", "with", "working-directory"];
/// Of an issue form, and the kinds of its parts.
const FORM: [&str; 4] = ["body", "description", "labels", "name"];
const PARTS: [&str; 4] = ["checkboxes", "input", "markdown", "textarea"];

pub fn workflows_have_the_right_shape() {
    let mut wrong = Vec::new();
    let mut add = |file: &Path, what: String| wrong.push(format!("{}: {what}", file.display()));
    let workflows = files(&root().join(".github/workflows"), "yml");
    assert!(!workflows.is_empty(), ".github/workflows has no workflow");
    for file in &workflows {
        faults_of_workflow(&parsed(file), &mut |what| add(file, what));
    }
    for file in files(&root().join(".github/ISSUE_TEMPLATE"), "yml") {
        let form = parsed(&file);
        if file.ends_with("config.yml") {
            unknown(&form, &["blank_issues_enabled", "contact_links"], &mut |what| add(&file, what));
            continue;
        }
        unknown(&form, &FORM, &mut |what| add(&file, what));
        if form["body"].as_vec().is_none_or(Vec::is_empty) {
            add(&file, "it has no body".to_owned());
        }
        for part in form["body"].as_vec().into_iter().flatten() {
            if part["type"].as_str().is_none_or(|kind| !PARTS.contains(&kind)) {
                add(&file, format!("a part of the body is a {:?}", part["type"]));
            }
        }
    }
    assert!(wrong.is_empty(), "faults below .github/:\n{}", wrong.join("\n"));
}

fn parsed(file: &Path) -> Yaml {
    let documents = YamlLoader::load_from_str(&read(file));
    let mut documents = documents.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    assert_eq!(documents.len(), 1, "{}: one document", file.display());
    documents.remove(0)
}

/// Reports keys that are not among these.
fn unknown(object: &Yaml, keys: &[&str], wrong: &mut impl FnMut(String)) {
    let Some(object) = object.as_hash() else { return wrong(format!("{object:?} is no mapping")) };
    for key in object.keys().filter_map(Yaml::as_str).filter(|key| !keys.contains(key)) {
        wrong(format!("the key {key:?} is none of {keys:?}"));
    }
}

fn faults_of_workflow(workflow: &Yaml, wrong: &mut impl FnMut(String)) {
    unknown(workflow, &WORKFLOW, wrong);
    unknown(&workflow["on"], &EVENTS, wrong);
    if workflow["permissions"]["contents"].as_str() != Some("read") {
        wrong("its permissions are not `contents: read`; a job that needs more has its own".to_owned());
    }
    let jobs = workflow["jobs"].as_hash();
    if jobs.is_none_or(|jobs| jobs.is_empty()) {
        wrong("it has no jobs".to_owned());
    }
    let names: BTreeSet<&str> = jobs.into_iter().flatten().filter_map(|(name, _)| name.as_str()).collect();
    for (name, job) in jobs.into_iter().flatten() {
        let mut wrong = |what: String| wrong(format!("job {}: {what}", name.as_str().unwrap_or("?")));
        unknown(job, &JOB, &mut wrong);
        if job["runs-on"].as_str().is_none() || job["timeout-minutes"].as_i64().is_none() {
            wrong("it has no runs-on or no timeout-minutes".to_owned());
        }
        let needs = &job["needs"];
        if !needs.is_badvalue() && needs.as_str().is_none_or(|needs| !names.contains(needs)) {
            wrong(format!("it needs {needs:?}, which is no job"));
        }
        let image = job["container"].as_str().or(job["container"]["image"].as_str());
        if image.is_some_and(|image| image != IMAGE) {
            wrong(format!("its container is {image:?}, and not {IMAGE}"));
        }
        if job["steps"].as_vec().is_none_or(Vec::is_empty) {
            wrong("it has no steps".to_owned());
        }
        for step in job["steps"].as_vec().into_iter().flatten() {
            faults_of_step(step, &mut wrong);
        }
    }
}

fn faults_of_step(step: &Yaml, wrong: &mut impl FnMut(String)) {
    unknown(step, &STEP, wrong);
    match (step["uses"].as_str(), step["run"].as_str()) {
        (Some(action), None) if ACTIONS.contains(&action) => {}
        (Some(action), None) => wrong(format!("{action} is none of {ACTIONS:?}")),
        (None, Some(commands)) => commands.lines().for_each(|line| faults_of_command(line, wrong)),
        _ => wrong(format!("{step:?} has not one of uses and run")),
    }
}

/// Targets of make, scripts and plans that a command names are in the repository.
fn faults_of_command(line: &str, wrong: &mut impl FnMut(String)) {
    let makefile = read(root().join("Makefile"));
    let mut words = line.split_whitespace().peekable();
    if words.next_if_eq(&"make").is_some() {
        let targets = words.clone().filter(|word| !word.contains('='));
        for target in targets.filter(|target| !makefile.contains(&format!("\n{target}:"))) {
            wrong(format!("{line}: the Makefile has no target {target}"));
        }
    }
    let files = words.filter(|word| word.starts_with("scripts/") || word.starts_with("experiments/"));
    for file in files.filter(|file| !root().join(file).exists()) {
        wrong(format!("{line}: there is no {file}"));
    }
}
