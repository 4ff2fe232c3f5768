//! `ferroccl verify`.

use serde_json::Value;

use super::support::{ferroccl, finish, text};

/// What was found with these arguments, and whether all was right.
fn found(arguments: &[&str]) -> (Vec<Value>, bool) {
    let mut command = ferroccl(["verify", "--json", "-"]);
    let out = finish(command.args(arguments));
    let all = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("{e}: {} {}", text(&out.stdout), text(&out.stderr)));
    (all, out.status.success())
}

#[test]
fn all_protocols_are_right_and_every_number_is_there() {
    let (all, right) = found(&[]);
    assert!(right, "{all:?}");
    let protocols: Vec<&str> = all.iter().map(|f| f["protocol"].as_str().unwrap()).collect();
    assert_eq!(protocols, ["LL", "LL", "LL128", "LL128", "Simple", "Simple"]);
    for one in all {
        assert!(one["complete"] == true && one["wrong"].is_null(), "{one}");
        assert!(one["executions"].as_u64() > Some(1), "{one}");
        assert!(one["states"].as_u64() > one["executions"].as_u64(), "{one}");
    }
}

/// What is broken on purpose does not count: the command is content.
#[test]
fn what_is_weakened_is_wrong_and_the_command_is_not() {
    let (all, right) = found(&["ll", "--weaken", "--pipeline", "3", "--slots", "2"]);
    assert!(right, "{all:?}");
    let wrong = |what: &str| {
        let one = all.iter().find(|f| f["without"] == what).unwrap_or_else(|| panic!("{what}"));
        one["wrong"].as_str().map(str::to_owned)
    };
    assert!(wrong("waiting for credit").unwrap().starts_with("deadlock: rank 1"), "{all:?}");
    assert!(wrong("a line's second flag").unwrap().starts_with("rank 1"), "{all:?}");
    assert_eq!(wrong("the acquire of the head"), None);
}

#[test]
fn a_race_is_explained_and_drawn() {
    let directory = tempfile::tempdir().unwrap();
    let svg = directory.path().join("race.svg");
    let arguments = ["verify", "LL128", "--pipeline", "3", "--weaken", "--explain", "--svg"];
    let out = finish(ferroccl(arguments).arg(&svg));
    assert!(out.status.success(), "{}", text(&out.stderr));
    let printed = text(&out.stdout);
    for words in
        ["without the release of the LL128 flag", "(st_release) forbids that", "stores D  <--"]
    {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    // Where all is right there is nothing to draw.
    let out = finish(ferroccl(["verify", "LL128", "--pipeline", "1", "--svg"]).arg(&svg));
    assert!(!out.status.success() && text(&out.stderr).contains("no race was found"));
}

#[test]
fn what_was_not_tried_is_not_called_right() {
    let out = finish(&mut ferroccl(["verify", "LL", "--all-reduces", "2", "--most-states", "50"]));
    assert!(!out.status.success());
    assert!(text(&out.stdout).contains("not all tried"), "{}", text(&out.stdout));
    for (arguments, complaint) in
        [(&["LL65"][..], "LL, LL128, Simple"), (&["LL", "--ranks", "1"], "1 is not in 2..=8")]
    {
        let out = finish(ferroccl(["verify"]).args(arguments));
        assert!(!out.status.success());
        assert!(text(&out.stderr).contains(complaint), "{}", text(&out.stderr));
    }
}
