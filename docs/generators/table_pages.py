"""`exit_codes.md`, `environment.md` and `run_folder.md`: names from the code, with the text of this module."""

from generators.markdown import HEAD, code, table
from paceline import errors, places
from paceline.engine import manifest
from paceline.storage import address as store_places
from paceline.storage import lease
from paceline.sweeps import sweep_log
from paceline.tracking import costs, journal, run_record, tracking_uri, upload_cursor

EXIT_CODES = {
    errors.OK: "The command finished.",
    errors.FAILED: "A run failed. stderr has the reason, and the traceback of the failing rank if user code raised. "
    "`lint`: at least one finding is an error.",
    errors.BAD_CONFIG: "The file or the command line is wrong. stderr has every problem with its place and a hint.",
    errors.BAD_ENVIRONMENT: "The environment lacks something: GPUs, cores, MLflow, data, disk. Or another command uses "
    "the name.",
    errors.TRIALS_FAILED: "The sweep ended, but some of its trials failed, ran out of memory or diverged. The others "
    "count.",
    errors.INTERRUPTED: "Interrupted. The state was saved; the same command continues.",
}
VARIABLES = {
    "Paceline": {
        places.STORAGE_VARIABLE: "Folder or address of the runs where neither the config nor `--storage` names one. "
        "Default: `./runs`.",
        places.ADDRESS_VARIABLE: "Ray cluster where `--address` is not set. Default: a private local Ray.",
        store_places.CACHE_VARIABLE: "Folder of this machine's working copies of runs in an object store. Default: "
        f"`{store_places.DEFAULT_CACHE}`. It may be removed when nothing runs.",
    },
    "MLflow": {
        tracking_uri.ENVIRONMENT_VARIABLE: "Tracking address where `tracking.uri` is not set. Default: `sqlite:///mlflow.db`.",
        "MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD": "Login of the tracking server.",
        "MLFLOW_TRACKING_TOKEN": "Token of the tracking server.",
        "MLFLOW_TRACKING_SERVER_CERT_PATH": "File of the certificate authorities that the tracking server is checked "
        "against.",
        "MLFLOW_TRACKING_INSECURE_TLS": "`true`: the server's certificate is not checked.",
    },
    "Ray": {
        "RAY_ADDRESS": "Ray's own address of the cluster, set in submitted jobs. `--address` counts before it.",
        "RAY_API_SERVER_ADDRESS": "Address that `submit` sends to where `--address` is not set. `RAY_ADDRESS` is "
        "next, then `http://127.0.0.1:8265`.",
        "RAY_AUTH_MODE": "`token`: the cluster asks for a token, which is in `~/.ray/auth_token` or in the file that "
        "`RAY_AUTH_TOKEN_PATH` names.",
        "RAY_TMPDIR": "Where a private Ray makes its folder. Default: `/tmp`, also where a longer name would not fit.",
        "RAY_worker_niceness": "Niceness of the workers on this machine. Paceline sets 0; Ray's default is 15.",
        "GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME": "Network interface of the exchange between workers, on each node.",
    },
    "Object stores": {
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY": "Credentials of S3, on every node. The store's configuration "
        "files or the machine's role serve as well.",
        "AWS_REGION, AWS_DEFAULT_REGION": "Region of the bucket; the first one that is set counts.",
        "AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL": "Address of an S3-compatible server; the first one set counts.",
    },
    "Terminal and Python": {
        "NO_COLOR": "Any value: no colours.",
        "CUDA_VISIBLE_DEVICES": "GPUs that this machine offers, as for every CUDA program.",
        "PYTHONDONTWRITEBYTECODE": "If set, each process compiles torch and Ray again and takes twice as long to "
        "start. `uv sync --compile-bytecode` compiles them once; `paceline doctor` reports it.",
    },
}
"""Each group of variables; several names in one row are separated by commas."""
RUN_FILES = {
    "run.json": "status and config; readable by its owner only",
    f"tracking/{journal.JOURNAL_FILE}": "every metric, before it is sent to MLflow",
    f"tracking/{run_record.RECORD_FILE}": "name, params, tags and MLflow store of the run",
    f"tracking/{upload_cursor.CURSOR_FILE}": "how much of the journal MLflow has",
    f"tracking/{costs.COST_FILE}": "core-seconds or GPU-seconds by use, over all launches",
    "tracking/artifacts/": "files that are sent to MLflow, such as `config.yaml` and `environment.txt`",
    "checkpoints/step-N/": "one checkpoint, see below",
    "report.html": "written by `paceline report`",
}
CHECKPOINT_FILES = {
    manifest.MANIFEST: "size and SHA-256 of every other file",
    manifest.NEEDED[0]: "weights and buffers of the model",
    "optimizer.safetensors": "tensors of the optimizer's state",
    "component.*.safetensors": "tensors of further components, such as the averages of the callback `ema`",
    manifest.STATE: "everything that is not a tensor: position, random generators, schedule, callbacks",
}
SWEEP_FILES = {
    "sweep.json": "status and config; readable by its owner only",
    sweep_log.FILE: "state of each trial and of each slot, and what trials reported at rungs",
    "best.yaml": "config of the best trial, for `train`; readable by its owner only",
    "tracking/": "journal of the sweep, as of a run",
    "trials/TRIAL_ID/": "journal and checkpoints of a trial, as of a run",
    "report.html": "written by `paceline report`",
}
TUNEUP_FILES = {
    "tuneup.json": "status and config; readable by its owner only",
    "jobs.jsonl": "result of each measurement, so that the tune-up can be resumed",
    "recommended.yaml": "recommended config with a comment on each changed line, for `train` and `sweep`",
    "findings.json": "everything that was measured, as `paceline tuneup --json` prints it",
    "report.html": "the report; `paceline report NAME` writes it again",
    "tracking/": "journal of the tune-up, as of a run",
}
SCALE_FILES = {
    "scale.json": "status and config; readable by its owner only",
    "jobs.jsonl": "result of each training and measurement, so that the study can be resumed",
    "recommended.yaml": "recommended config, for `train` and `sweep`",
    "findings.json": "everything that was measured, as `paceline scale --json` prints it",
    "report.html": "the report; `paceline report NAME` writes it again",
    "tracking/": "journal of the study, as of a run",
}
STORE = f"""\
## In an object store

With `storage.path: s3://bucket/prefix`, runs and sweeps have the same names in the store. They are worked on in a copy
below `${store_places.CACHE_VARIABLE}`. The log of a sweep is a folder there, `log.jsonl/`, with parts of up to 1 MiB.

- A checkpoint counts once it is in the store. Its files are uploaded first, then the journal with its metrics, and the
  manifest last.
- An upload that fails is a warning, and training continues. The upload of the last checkpoint is retried for a minute.
  If it still fails, the run ends with exit code 1, and the same command on the same machine resumes from the copy.
- Resuming downloads the newest valid checkpoint and nothing else, once to each node. A copy on this machine that is
  newer than the store counts if nobody else has worked on the run since and its journal is there as well.
- MLflow gets only points that the journal in the store has, seconds later. So it has each point once, whichever machine
  resumes the run.
- The lease `{lease.FILE}` names the machine that works on a name. It is renewed every 20 s. Another machine waits for
  up to 90 s before it takes a run over, and a run that was taken over ends before its next checkpoint. This is best
  effort: two commands must not start within the same instant, and clocks must agree to a minute.
- A killed upload may leave parts that only the bucket's rule for incomplete uploads removes. Set such a rule.
- A sweep's log is uploaded after the records of its trials. So a trial that has ended in the store's log has its record
  there, and a trial's checkpoints count once the store's log has the trial with its present values.
- A store that cannot be used ends a sweep, with exit code 1. Its trials do not count as failed, and the same command
  resumes them.
- Tune-ups and scale studies need a folder.

`gs://` and `abfss://` are opened by pyarrow, too. Only S3 has been tested, against a local S3 server (moto)."""


def exit_codes() -> str:
    """Return `exit_codes.md`."""
    rows = [[str(number), text] for number, text in EXIT_CODES.items()]
    return "\n".join(["# Exit codes", "", HEAD, "", *table(["code", "meaning"], rows), "", ERROR_CODES, ""])


ERROR_CODES = """\
Every error has a code of its own as well, such as `cluster-too-small`. The command line prints it in brackets at the
end of the message, `--json` has it as `code`, and in Python it is `error.code`, beside `error.fields` with the values
that the message names."""


def environment() -> str:
    """Return `environment.md`."""
    lines = ["# Environment variables", "", HEAD]
    for group, variables in VARIABLES.items():
        rows = [[", ".join(map(code, names.split(", "))), text] for names, text in variables.items()]
        lines += ["", f"## {group}", "", *table(["variable", "meaning"], rows)]
    return "\n".join([*lines, ""])


def run_folder() -> str:
    """Return `run_folder.md`."""
    parts = {
        "A run: `<storage>/<name>/<run_id>/`": RUN_FILES,
        "A checkpoint: `checkpoints/step-N/`": CHECKPOINT_FILES,
        "A sweep: `<storage>/<name>/<sweep_id>/`": SWEEP_FILES,
        "A tune-up: `<storage>/<name>/<tuneup_id>/`": TUNEUP_FILES,
        "A scale study: `<storage>/<name>/<scale_id>/`": SCALE_FILES,
    }
    lines = ["# Files of runs, sweeps, tune-ups and scale studies", "", HEAD, "", STORAGE]
    for title, files in parts.items():
        lines += [
            "",
            f"## {title}",
            "",
            *table(["file", "contents"], [[code(file), text] for file, text in files.items()]),
        ]
        if files is CHECKPOINT_FILES:
            lines += ["", CHECKPOINTS]
    return "\n".join([*lines, "", STORE, ""])


STORAGE = f"""\
`<storage>` is `storage.path`, by default `${places.STORAGE_VARIABLE}`, else `./runs`. The id is the time of the start
and six characters, such as `20261121-180731-548a55`. MLflow's default store is in the working folder: the
database `mlflow.db` and the folder `mlruns`."""
CHECKPOINTS = """\
A checkpoint is written into a temporary folder, synced to disk and then renamed. Resuming takes the newest one whose
files match the manifest, and reports each broken one that it skips. Nothing is pickled. A checkpoint does not depend on
the strategy or on the number of workers: a run that was stopped under one resumes under another."""
