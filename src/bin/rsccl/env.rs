//! `rsccl env`: the table of variables.

use std::process::ExitCode;

use rsccl::Result;
use rsccl::config::{Config, Environment, Launch, StoreAddress};
use rsccl::internals::comm::place_in_words;
use rsccl::internals::config::{CONF_FILE_DOC, Kind, Note, Setting, Variable};
use rsccl::internals::session::settings;
use serde_json::{Value, json};

use crate::{EXIT_USAGE, print};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Print JSON: an object with `variables`, `launch`, `launchers` (the names of their variables), `notes`
    #[arg(long)]
    json: bool,
}

/// Prints the table. Bad values are reported on standard error after the table, and make the command fail.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode> {
    let environment = Environment::capture();
    let (mut settings, notes) = Config::default().explain(&environment)?;
    settings.iter_mut().for_each(judge);
    let resolved = Config::default().resolve_in(&environment);
    // Usually there is no launcher here, and then there is nothing to show.
    let learnt = resolved.as_ref().ok().map(|config| Launch::learn(&environment, config));
    let (launch, wrong) = match learnt {
        Some(Ok(launch)) => (Some(launch), None),
        Some(Err(error)) if Launch::is_rank(&environment) => (None, Some(error)),
        Some(Err(_)) | None => (None, None),
    };
    let meeting = resolved.as_ref().ok().zip(launch.as_ref()).map(|(config, launch)| {
        // That there is no place is what the user wants to know.
        place_in_words(launch, config).unwrap_or_else(|error| error.message().to_owned())
    });
    let text = match arguments.json {
        true => format!("{:#}\n", as_json(&settings, (launch.as_ref(), meeting.as_deref()), &notes)),
        false => as_table(&settings, &launchers(&environment), launch.as_ref(), meeting.as_deref()),
    };
    print::out("the table", &text)?;
    let mut problems: Vec<String> = settings.iter().filter_map(|setting| setting.problem.clone()).collect();
    if let Err(error) = &resolved
        && !problems.iter().any(|problem| problem.contains(&error.to_string()))
    {
        // Unknown names, and errors about several variables together, such as a product that is too large.
        problems.push(error.to_string());
    }
    // What a launcher has set is wrong: every program fails by it.
    problems.extend(wrong.map(|error| error.message().to_owned()).filter(|text| !problems.contains(text)));
    let is_told = |text: &String| problems.iter().any(|problem| problem.contains(text));
    for note in notes.iter().filter(|_| !arguments.json) {
        match note {
            Note::Mistake(text) if is_told(text) => {}
            Note::Mistake(text) | Note::Warning(text) => print::complain(&format!("rsccl: warning: {text}")),
            Note::Information(text) => print::complain(&format!("rsccl: {text}")),
            _ => {}
        }
    }
    for problem in &problems {
        print::complain(&format!("rsccl: error: {problem}"));
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_USAGE) })
}

/// Asks the library whether a program would take the value: the table of variables alone cannot tell that of lists, and
/// of the content of files.
fn judge(setting: &mut Setting) {
    let variable = setting.variable;
    let is_set = setting.value != setting.default && setting.problem.is_none();
    // A secret is not shown, and its length was checked.
    if !is_set || matches!(variable.kind, Kind::Secret) {
        return;
    }
    let alone = Config::default().with_variable(&variable.full_name(), &setting.value);
    let checked = alone.and_then(|config| settings::check(&config));
    setting.problem = checked.err().map(|error| format!("{} ({}): {error}", variable.full_name(), setting.source));
}

/// What the variable means, with its words where it is a choice.
fn meaning(variable: &Variable) -> String {
    match variable.kind {
        Kind::Choice(words) => format!("{} ({})", variable.doc, words.join(", ")),
        _ => variable.doc.to_owned(),
    }
}

/// The launchers' variables with their values here.
fn launchers(environment: &Environment) -> Vec<(&'static str, Option<String>)> {
    // A value that is not UTF-8 is shown as not set; the setting that uses it reports the error.
    let value = |name| environment.get(name).ok().flatten().map(str::to_owned);
    Launch::names().into_iter().map(|name| (name, value(name))).collect()
}

fn as_table(
    settings: &[Setting],
    launchers: &[(&'static str, Option<String>)],
    launch: Option<&Launch>,
    meeting: Option<&str>,
) -> String {
    let mut rows = vec![HEADER.map(str::to_owned)];
    let shown = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    for setting in settings {
        let source = match setting.problem {
            Some(_) => format!("{} (bad)", setting.source),
            None => setting.source.to_string(),
        };
        let variable = setting.variable;
        let (default, value) = (shown(&setting.default), shown(&setting.value));
        rows.push([variable.full_name(), variable.kind.name().to_owned(), default, value, source, meaning(variable)]);
    }
    let mut widths = [0; HEADER.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text.push_str(&format!("\nNCCL_CONF_FILE in the environment: {CONF_FILE_DOC}.\n"));
    text.push_str("Each NCCL_X is read as RSCCL_X first. Stronger before weaker: environment, the user's file, ");
    text.push_str("/etc/nccl.conf, the program, the default.\n");
    text.push_str(
        "Launchers' variables, which say which rank a process is (the first launcher whose rank is set counts):\n",
    );
    for (name, value) in launchers {
        text.push_str(&format!("  {name}={}\n", value.as_deref().unwrap_or("-")));
    }
    if let Some(launch) = launch {
        let store = launch.store.as_ref().map_or("no store".to_owned(), StoreAddress::to_string);
        let (rank, size, source) = (launch.world.rank, launch.world.size, launch.source);
        text.push_str(&format!("Launched as rank {rank} of {size} by {source}, {store}.\n"));
        text.push_str(&meeting.map_or(String::new(), |meeting| format!("As it is launched: {meeting}.\n")));
    }
    text
}

fn as_json(settings: &[Setting], (launch, meeting): (Option<&Launch>, Option<&str>), notes: &[Note]) -> Value {
    let optional = |text: &str| if text.is_empty() { Value::Null } else { json!(text) };
    let variable = |setting: &Setting| {
        json!({
            "name": setting.variable.full_name(),
            "names": setting.variable.names().collect::<Vec<_>>(),
            "type": setting.variable.kind.name(),
            "allowed": setting.variable.allowed(),
            "default": optional(&setting.default),
            "value": optional(&setting.value),
            "source": setting.source.to_string(),
            "problem": setting.problem,
            "doc": setting.variable.doc,
        })
    };
    let note = |note: &Note| match note {
        Note::Mistake(text) => json!({ "level": "mistake", "text": text }),
        Note::Warning(text) => json!({ "level": "warning", "text": text }),
        Note::Information(text) => json!({ "level": "information", "text": text }),
        _ => Value::Null,
    };
    json!({
        "variables": settings.iter().map(variable).collect::<Vec<_>>(),
        "launch": launch.map(|launch| json!({
            "rank": launch.world.rank.get(),
            "world": launch.world.size,
            "local_rank": launch.local_rank,
            "local_size": launch.local_size,
            "store": launch.store.as_ref().map(StoreAddress::to_string),
            "launcher": launch.source,
            "meeting": meeting,
        })),
        "launchers": Launch::names(),
        "notes": notes.iter().map(note).collect::<Vec<_>>(),
    })
}

const HEADER: [&str; 6] = ["NAME", "TYPE", "DEFAULT", "VALUE", "SOURCE", "MEANING"];
