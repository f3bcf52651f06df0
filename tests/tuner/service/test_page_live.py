"""The page as people use it: live progress, applying, the autopilot, jobs, servers, logging in; keyboard too."""

from __future__ import annotations

from tests.tuner.service.conftest import Stage
from tests.tuner.service.page_backend import Backend, job, server, summary
from tests.tuner.service.page_browser import Page, shown


def test_events_move_the_progress_and_are_announced(stage: Stage) -> None:
    """An event changes bar and words without a reload, and is said aloud; the end takes the job off the list."""

    async def scenario(backend: Backend, page: Page) -> None:
        await page.until("document.querySelector('progress').value === 20")
        await page.see("20 of 80 points, about 3 min left")
        await page.until("document.querySelector('#link').textContent === 'live'")
        backend.tell("job", job(points_done=21, eta_s=170.0))
        await page.until("document.querySelector('progress').value === 21")
        backend.tell("job", job(points_done=60, eta_s=50.0))
        await page.see("60 of 80 points, about 50 s left")
        await page.until(
            "document.getElementById('announcer').textContent === 'sweep of night: 60 of 80 points, about 50 s left'"
        )
        backend.tell("job", job(state="done", points_done=80, exit_code=0))
        await page.until("!document.querySelector('progress')")

    stage.play(scenario)


def test_a_lost_connection_is_shown_and_everything_fetched_anew(stage: Stage) -> None:
    """After the stream ended the page reconnects by itself and knows what happened meanwhile; `reset` does the same."""

    async def scenario(backend: Backend, page: Page) -> None:
        await page.until("document.querySelector('#link').textContent === 'live'")
        backend.runs.append(summary("meanwhile"))
        backend.drop()
        await page.see("meanwhile")
        await page.until("document.querySelector('#link').textContent === 'live'")
        backend.runs = [summary("only-this")]
        backend.tell("reset")
        await page.until("document.querySelectorAll('.runs tbody tr').length === 1")
        await page.see("only-this")

    stage.play(scenario)


def test_a_view_that_failed_comes_back(stage: Stage) -> None:
    """What could not be shown says why, and is shown as soon as the service is well or the run is there."""

    async def scenario(backend: Backend, page: Page) -> None:
        await page.see("the disk is gone")
        backend.broken = False
        backend.drop()
        await page.until("document.querySelectorAll('.runs tbody tr').length === 2")
        await page.go("#/runs/soon")
        await page.see("there is no soon")
        backend.runs.append(summary("soon"))
        backend.tell("run", summary("soon"))
        await page.see("81 of 81 points, 80 usable")

    stage.play(scenario, backend=Backend(broken=True))


def test_apply_by_keyboard_with_confirmation_and_read_back(stage: Stage) -> None:
    """Tab to Apply; the dialog states old and new values and starts at Cancel; then what the server reads back."""

    async def scenario(backend: Backend, page: Page) -> None:
        await page.see("Apply to a live server")
        await page.tab_to("e.textContent === 'Apply …'")
        await page.press("Enter")
        await page.until("document.querySelector('#dialog[open]') && document.activeElement.textContent === 'Cancel'")
        assert await page.evaluate("document.querySelector('.changes tbody').innerText.split(/\\s*\\n\\s*|\\t/)") == [
            "threshold", "24", "113", "resumes at", "18", "85", "stays off at least", "16 steps", "16 steps",
        ]  # fmt: skip
        assert backend.asked == []
        await page.tab_to("e.textContent === 'Apply to box'")
        await page.press("Enter")
        await page.see("Agrees. box reads back what was asked.")
        assert backend.asked == [("POST", "/api/v1/servers/box/apply", {"run": "night"})]
        assert await page.evaluate("document.activeElement.textContent") == "Close"
        await page.press("Enter")
        await page.until("!document.querySelector('dialog[open]')")

    stage.play(scenario, "#/runs/night")


def test_a_threshold_is_set_by_hand(stage: Stage) -> None:
    """The same question and read-back as for a recommendation; an empty field never disables."""

    async def scenario(backend: Backend, page: Page) -> None:
        await page.click("#hand-threshold")
        await page.type("113")
        await page.press("Enter")
        await page.until("document.querySelector('.changes .new').textContent === '113'")
        await page.click("#dialog button.main")
        await page.see("Agrees. box reads back what was asked.")
        await page.press("Escape")
        await page.until("!document.querySelector('dialog[open]')")
        await page.evaluate("void (document.getElementById('hand-threshold').value = '')")
        await page.click("#hand-threshold")
        await page.press("Enter")
        await page.until("document.querySelector('.changes .new').textContent === 'never disable'")
        await page.click("#dialog button.main")
        await page.see("Agrees.")
        assert [body for _, _, body in backend.asked] == [{"threshold": 113}, {"threshold": None}]

    stage.play(scenario, "#/servers/box")


def test_apply_can_be_left(stage: Stage) -> None:
    """Escape closes the dialog, and nothing was asked of anyone."""

    async def scenario(backend: Backend, page: Page) -> None:
        await page.click(".apply button")
        await page.until("document.querySelector('#dialog[open]')")
        await page.press("Escape")
        await page.until("!document.querySelector('dialog[open]')")
        assert backend.asked == []

    stage.play(scenario, "#/runs/night")


def test_a_read_back_that_differs_is_not_called_success(stage: Stage) -> None:
    """The dialog says that the server does not agree, with its own reason and values."""
    back = {"threshold": 24, "resume_at": 18, "min_dwell": 16, "policy_id": "p1", "last_error": "refused: no graph"}

    async def scenario(_: Backend, page: Page) -> None:
        await page.click(".apply button")
        await page.click("#dialog button.main")
        await page.see("Does NOT agree.")
        assert "refused: no graph" in await page.text("#dialog .failed")
        assert "Agrees." not in await page.text("#dialog")

    stage.play(scenario, "#/runs/night", Backend(read_back=back))


def test_servers_show_their_state_and_why(stage: Stage) -> None:
    """Live figures follow the events; a server that lies says so with the reason; focus stays where it was."""

    async def scenario(backend: Backend, page: Page) -> None:
        await page.until("document.querySelectorAll('.server').length === 2")
        box = "document.querySelector('[data-server=box]')"
        figures = await page.evaluate(
            f"Object.fromEntries([...{box}.querySelectorAll('dl > div')].map((e) => [...e.children]"
            ".map((c) => c.textContent)))"
        )
        assert figures == {
            "batch": "17", "speculation": "on", "threshold": "24", "resumes at": "18", "switches": "42",
            "steps on": "120,000", "steps off": "8,000", "accept length": "2.81", "tokens/s": "4,321",
            "autopilot": "off",
        }  # fmt: skip
        assert await page.text("[data-server=gone] .problem") == "It does not answer."
        assert await page.evaluate(shown("[data-server]:has(.badge.simulated) h2")) == ["gone"]
        assert await page.evaluate(shown("[data-server=gone] dl > div:not([hidden])")) == ["autopilotoff"]
        await page.evaluate(f"{box}.querySelector('a').focus()")
        await page.until("document.querySelector('#link').textContent === 'live'")
        backend.tell(
            "server", server("box", state="lying", problem="steps_on went backwards", speculating=False, batch=70.0)
        )
        await page.until(f"{box}.dataset.state === 'lying'")
        problem = "What it says cannot be true, so its figures are not shown: steps_on went backwards."
        assert await page.text("[data-server=box] .problem") == problem
        assert await page.evaluate(f"document.activeElement === {box}.querySelector('a')")

    unknown = dict.fromkeys(server("box").keys() - {"name", "url", "state", "since_s", "problem", "autopilot"})
    servers = [server("box"), server("gone", state="down", problem="it does not answer", simulated=True, **unknown)]
    stage.play(scenario, "#/servers", Backend(servers=servers))


def test_the_autopilot_is_switched_on_only_after_a_question(stage: Stage) -> None:
    """Dry run is set at once; on asks first, with the bounds; moves stand in the log with their reasons."""
    move = {
        "at_s": 1_790_000_100.0,
        "from": 24,
        "to": 31,
        "interval": [28, 36],
        "reason": "on gains 4 % at batch 28",
        "dry_run": True,
    }

    async def scenario(backend: Backend, page: Page) -> None:
        await page.until("document.querySelector('#bound-high').value === '128'")
        await page.see("on gains 4 % at batch 28")
        await page.see("dry run: not done")
        await page.click("input[name=autopilot][value=dry_run] + span")
        await page.click("form:has([name=autopilot]) button.main")
        await page.until("!document.querySelector('form:has([name=autopilot]) button.main').disabled")
        await page.click("input[name=autopilot][value=on] + span")
        await page.click("form:has([name=autopilot]) button.main")
        await page.see("It will move the threshold between 8 and 128 on live traffic")
        path = "/api/v1/servers/box/autopilot"
        assert backend.asked == [("POST", path, {"state": "dry_run", "bounds": [8, 128]})]
        await page.click("#dialog button.main")
        await page.until("!document.querySelector('dialog[open]')")
        assert backend.asked[1] == ("POST", path, {"state": "on", "bounds": [8, 128]})

    stage.play(scenario, "#/servers/box", Backend(moves=[move]))


def test_a_server_is_registered(stage: Stage) -> None:
    """Name and URL are sent, and the server appears."""

    async def scenario(backend: Backend, page: Page) -> None:
        await page.click("#server-name")
        await page.type("second")
        await page.press("Tab")
        await page.type("http://10.0.0.6:30000")
        await page.press("Enter")
        await page.until("document.querySelector('[data-server=second]')")
        assert backend.asked == [("POST", "/api/v1/servers", {"name": "second", "url": "http://10.0.0.6:30000"})]

    stage.play(scenario, "#/servers")


def test_a_sweep_is_started(stage: Stage) -> None:
    """What was filled in is sent as the service wants it, the rest is left out; then the job is shown with its log."""

    async def scenario(backend: Backend, page: Page) -> None:
        backend.jobs.append(job(id="j2", run="mine"))
        await page.click("#run-name")
        await page.type("mine")
        await page.click("#option-concurrency")
        await page.type("1, 8,64")
        await page.click("#option-repeats")
        await page.type("2")
        await page.press("Enter")
        await page.until("location.hash === '#/jobs/j2'")
        await page.see("first line")
        options = {"concurrency": [1, 8, 64], "repeats": 2}
        assert backend.asked == [
            ("POST", "/api/v1/jobs", {"kind": "sweep", "sim": "h200-test", "run": "mine", "options": options})
        ]

    stage.play(scenario, "#/start")


def test_a_tuning_on_a_registered_server_is_started(stage: Stage) -> None:
    """The form shows what a tuning takes, and sends the server in place of a preset."""

    async def scenario(backend: Backend, page: Page) -> None:
        backend.jobs.append(job(id="j2"))
        await page.click("input[name=kind][value=tune] + span")
        await page.click("input[name=target][value=server] + span")
        await page.see("not one that serves people")
        await page.click("#option-budget")
        await page.type("20m")
        await page.click("#option-context_lengths")
        await page.type("128, 2048")
        assert await page.evaluate("document.getElementById('option-repeats').closest('.field').hidden")
        await page.click("form.start button.main")
        await page.until("location.hash === '#/jobs/j2'")
        assert backend.asked == [
            (
                "POST",
                "/api/v1/jobs",
                {"kind": "tune", "server": "box", "options": {"budget": "20m", "context_lengths": [128, 2048]}},
            )
        ]

    stage.play(scenario, "#/start")


def test_a_job_is_cancelled_and_resumed(stage: Stage) -> None:
    """Cancel asks first; then the job can be resumed."""

    async def scenario(backend: Backend, page: Page) -> None:
        await page.click("[data-job=j1] .actions button:nth-of-type(1)")
        await page.see("Cancel night?")
        assert backend.asked == []
        await page.click("#dialog button.main")
        await page.until("document.querySelector('[data-job=j1] .state').textContent === 'cancelled'")
        await page.click("[data-job=j1] .actions button:nth-of-type(2)")
        await page.until("document.querySelector('[data-job=j1] .state').textContent === 'running'")
        assert [path for _, path, _ in backend.asked] == ["/api/v1/jobs/j1/cancel", "/api/v1/jobs/j1/resume"]

    stage.play(scenario, "#/jobs")


def test_a_401_asks_for_the_token_and_then_goes_on(stage: Stage) -> None:
    """A wrong token is refused in words; the right one closes the form and shows what was asked for."""

    async def scenario(_: Backend, page: Page) -> None:
        await page.until("document.querySelector('#login[open]') && document.activeElement.id === 'token'")
        await page.type("wrong")
        await page.press("Enter")
        await page.see("This token is wrong.")
        assert await page.evaluate("document.querySelectorAll('.runs').length") == 0
        await page.type("right")
        await page.press("Enter")
        await page.until(
            "!document.querySelector('dialog[open]') && document.querySelectorAll('.runs tbody tr').length === 2"
        )
        await page.until("document.querySelector('#link').textContent === 'live'")

    stage.play(scenario, backend=Backend(token="right"))
