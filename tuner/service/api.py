"""The table of routes under /api/v1, and the few beside it."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

from tuner.service import answers, asked, job_routes, openapi, run_answers, run_routes, server_routes
from tuner.service.joblog import MAX_LINES
from tuner.service.names import PATTERN
from tuner.service.routes import Query, Route

V1 = "/api/v1"
RUN, JOB, SERVER = f"{V1}/runs/{{run}}", f"{V1}/jobs/{{job}}", f"{V1}/servers/{{server}}"
_NAME = {"type": "string", "pattern": PATTERN}
_NOTHING = (asked.Nothing,)
_WORK = (404, 409, 500)  # refusals of what is worked out in another process


async def get_openapi(service: Any, request: Any) -> bytes:
    return _document()


@cache
def _document() -> bytes:
    return openapi.document(ROUTES)


ROUTES: tuple[Route, ...] = (
    Route("GET", f"{V1}/openapi.json", get_openapi, "This description", {"type": "object"}),
    Route("GET", f"{V1}/runs", run_routes.list_runs, "Every run", run_answers.Runs),
    Route("GET", RUN, run_routes.get_run, "What a run's manifest says", run_answers.RunDetail, refusals=(404, 409)),
    Route("GET", f"{RUN}/levels", run_routes.get_levels, "Its levels.csv", run_answers.Levels, refusals=(404, 409)),
    Route("GET", f"{RUN}/curves", run_routes.get_curves, "Its curves", run_answers.CurvesAnswer, refusals=_WORK),
    Route(
        "GET",
        f"{RUN}/recommendation",
        run_routes.get_recommendation,
        "Its recommendation; 404 where none was made",
        run_answers.RecommendationAnswer,
        refusals=_WORK,
    ),
    Route(
        "POST",
        f"{RUN}/recommendation",
        run_routes.make_recommendation,
        "Make it, as `specpivot recommend` does",
        run_answers.RecommendationAnswer,
        refusals=_WORK,
        body=_NOTHING,
    ),
    Route(
        "GET",
        f"{RUN}/export",
        run_routes.export_run,
        "Its recommendation in another program's words",
        run_answers.ExportAnswer,
        refusals=_WORK,
        query=(Query("format", {"type": "string", "enum": list(get_args(run_answers.Format)), "default": "json"}),),
    ),
    Route(
        "GET",
        f"{RUN}/report",
        run_routes.get_report,
        "Its report, a page without scripts",
        {"type": "string"},
        refusals=_WORK,
        media="text/html",
    ),
    Route(
        "GET",
        f"{V1}/compare",
        run_routes.compare_runs,
        "What `specpivot compare` says of two runs; 409 where it refuses",
        run_answers.ComparisonAnswer,
        refusals=_WORK,
        query=(Query("a", _NAME, True), Query("b", _NAME, True)),
    ),
    Route("GET", f"{V1}/jobs", job_routes.list_jobs, "Every job", answers.Jobs),
    Route(
        "POST",
        f"{V1}/jobs",
        job_routes.start_job,
        "Start a job",
        answers.Job,
        status=201,
        refusals=(404, 409),
        body=(asked.NewSweep | asked.NewTune,),
    ),
    Route("GET", f"{V1}/presets", job_routes.list_presets, "What can be simulated", answers.Presets),
    Route("GET", JOB, job_routes.get_job, "One job", answers.Job, refusals=(404,)),
    Route(
        "GET",
        f"{JOB}/log",
        job_routes.get_log,
        "The end of its log",
        answers.Log,
        refusals=(404,),
        query=(Query("tail", {"type": "integer", "minimum": 1, "maximum": MAX_LINES, "default": 200}),),
    ),
    Route(
        "POST",
        f"{JOB}/cancel",
        job_routes.cancel_job,
        "Interrupt it; again to end it at once",
        answers.Job,
        refusals=(404, 409),
        body=_NOTHING,
    ),
    Route(
        "POST",
        f"{JOB}/resume",
        job_routes.resume_job,
        "Go on with it",
        answers.Job,
        refusals=(404, 409),
        body=_NOTHING,
    ),
    Route("GET", f"{V1}/servers", server_routes.list_servers, "Every registered server", answers.Servers),
    Route(
        "POST",
        f"{V1}/servers",
        server_routes.add_server,
        "Register a server",
        answers.Server,
        status=201,
        refusals=(409,),
        body=(asked.NewServer,),
    ),
    Route("GET", SERVER, server_routes.get_server, "One server", answers.Server, refusals=(404,)),
    Route("DELETE", SERVER, server_routes.remove_server, "Forget it", answers.Gone, refusals=(404, 409)),
    Route(
        "POST",
        f"{SERVER}/apply",
        server_routes.apply,
        "Set its threshold, and read it back",
        answers.Applied,
        refusals=_WORK,
        body=(asked.ApplyRun, asked.ApplyThreshold),
    ),
    Route(
        "POST",
        f"{SERVER}/autopilot",
        server_routes.set_autopilot,
        "Switch its autopilot",
        answers.Server,
        refusals=(404, 409),
        body=(asked.SetAutopilot,),
    ),
    Route("GET", f"{SERVER}/audit", server_routes.get_audit, "Its autopilot's moves", answers.Audit, refusals=(404,)),
    Route(
        "GET",
        f"{V1}/events",
        job_routes.stream_events,
        "What changes, as server-sent events job, server, run and reset",
        {"type": "string"},
        refusals=(503,),
        media="text/event-stream",
    ),
)
