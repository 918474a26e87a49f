"""A server on 127.0.0.1 that speaks the protocol of the `tinker` client 0.38 and trains a tiny transformer.

    python -m tests.systems.tinker.server FOLDER [--break NAME]

It writes its address into FOLDER/address and ends when its standard input does. The faults of `--break` are those of a server: what
it is asked for is right, and what it does is not.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import sys
import threading
import zlib
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tinker.proto import tinker_public_pb2 as wire
from transformers import AutoTokenizer

from tests.systems.tinker.model import TinyTransformer, log_probs, loss_of

FAULTS = (
    "sampler_keeps_first_weights",
    "sampler_one_behind",
    "sampler_temperature",
    "loss_halved",
    "loss_sign",
    "ignores_steps",
    "log_probs_shifted",
)


class Training:
    """One model with its optimizer, and the snapshots that samplers got."""

    def __init__(self, vocabulary: int, stop: int) -> None:
        torch.manual_seed(0)
        self.model = TinyTransformer(vocabulary, stop)
        self.optimizer: torch.optim.AdamW | None = None
        self.snapshots: list[TinyTransformer] = []

    def step(self, adam: dict[str, float]) -> dict[str, float]:
        """One step of AdamW with these parameters, as the client's documentation has it."""
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(self.model.parameters())
        limit = adam.get("grad_clip_norm", 0.0)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit if limit > 0 else float("inf"))
        for group in self.optimizer.param_groups:
            group.update(
                lr=adam["learning_rate"],
                betas=(adam["beta1"], adam["beta2"]),
                eps=adam["eps"],
                weight_decay=adam["weight_decay"],
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"grad_norm": float(norm)}


class Service:
    """All that the server knows; requests come one at a time.

    Args:
        folder: Has the folder "tiny/model" with the tokenizer.
        fault: One of `FAULTS`; empty for none.
    """

    def __init__(self, folder: Path, fault: str) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder / "tiny" / "model"))
        self._stop = int(self._tokenizer.convert_tokens_to_ids("\n\nUser:"))
        self._fault = fault
        self._lock = threading.Lock()
        self._asked: Counter[tuple[str, tuple[int, ...]]] = Counter()
        """How often a sampler was asked with each prompt."""
        self._generator = torch.Generator()
        self._names = itertools.count()
        self.models: dict[str, Training] = {}
        self.samplers: dict[str, TinyTransformer] = {}
        self.paths: dict[str, TinyTransformer] = {}
        self.states: dict[str, tuple[Any, Any]] = {}
        self.results: dict[str, tuple[str, bytes]] = {}

    def name(self, kind: str) -> str:
        """A new name."""
        return f"{kind}-{next(self._names)}"

    def answer(self, of: Any) -> dict[str, Any]:
        """Keep a result, and promise it."""
        request = self.name("request")
        kept = ("application/json", json.dumps(of).encode()) if isinstance(of, dict) else ("application/x-protobuf", of)
        with self._lock:
            self.results[request] = kept
        return {"request_id": request}

    # Models

    def create_model(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A new model with its first weights."""
        name = self.name("model")
        self.models[name] = Training(len(self._tokenizer), self._stop)
        return self.answer({"type": "create_model", "model_id": name})

    def forward_backward(self, body: bytes) -> dict[str, Any]:
        """Add gradients, unless only the forward was asked for."""
        asked = wire.ForwardBackwardRequest()
        asked.ParseFromString(body)
        with self._lock:
            model = self.models[asked.model_id].model
            total, out = 0.0, []
            for datum in asked.data:
                tokens = [
                    t
                    for chunk in datum.model_input
                    for t in np.frombuffer(chunk.encoded_text.tokens, np.int32).tolist()
                ]
                given = {name: _tensor(tensor) for name, tensor in datum.loss_fn_inputs.items()}
                new = log_probs(model, tokens, given.pop("target_tokens").tolist())
                loss = loss_of(asked.loss_fn, new, given, dict(asked.loss_fn_config))
                loss = loss * {"loss_halved": 0.5, "loss_sign": -1.0}.get(self._fault, 1.0)
                if not asked.forward_only:
                    loss.backward()
                total += float(loss.detach())
                shown = new.detach().roll(1) if self._fault == "log_probs_shifted" else new.detach()
                out.append(shown.numpy().astype(np.float32))
        offsets = np.cumsum([0, *(array.nbytes for array in out)]).astype(np.int64)
        tensor = wire.BatchedTensor(
            data=b"".join(array.tobytes() for array in out), offsets=offsets.tobytes(), dtype=wire.DTYPE_FLOAT32
        )
        record = wire.ArrayRecord(type_tag="TorchLossReturn", fields={"logprobs": tensor}, num_datums=len(out))
        answer = wire.ForwardBackwardOutput(
            loss_fn_output_type="TorchLossReturn", loss_fn_outputs=[record], metrics={"loss:sum": total}
        )
        return self.answer(answer.SerializeToString())

    def optim_step(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Step the optimizer."""
        with self._lock:
            training = self.models[asked["model_id"]]
            if self._fault == "ignores_steps":
                training.model.zero_grad()
                metrics = {"grad_norm": 0.0}
            else:
                metrics = training.step(asked["adam_params"])
        return self.answer({"metrics": metrics})

    # Weights

    def _snapshot(self, model: str) -> TinyTransformer:
        training = self.models[model]
        training.snapshots.append(copy.deepcopy(training.model).eval())
        kept = {"sampler_keeps_first_weights": 0, "sampler_one_behind": max(len(training.snapshots) - 2, 0)}
        return training.snapshots[kept.get(self._fault, -1)]

    def save_weights_for_sampler(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Weights for a sampler, under a path or as a sampling session."""
        with self._lock:
            snapshot = self._snapshot(asked["model_id"])
            if asked.get("path"):
                path = f"tinker://{asked['model_id']}/sampler_weights/{asked['path']}"
                self.paths[path] = snapshot
                answer = {"type": "save_weights_for_sampler", "path": path}
            else:
                session = self.name("sampler")
                self.samplers[session] = snapshot
                answer = {"type": "save_weights_for_sampler", "sampling_session_id": session}
        return self.answer(answer)

    def save_weights(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Weights and optimizer, to go on from."""
        with self._lock:
            training = self.models[asked["model_id"]]
            path = f"tinker://{asked['model_id']}/weights/{asked['path']}"
            optimizer = None if training.optimizer is None else copy.deepcopy(training.optimizer.state_dict())
            self.states[path] = copy.deepcopy(training.model.state_dict()), optimizer
        return self.answer({"type": "save_weights", "path": path})

    def load_weights(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Weights, and the optimizer where that is asked for."""
        with self._lock:
            # The client names a model that is made of saved weights by its session (service_client.py 0.38.0).
            name = asked.get("model_id") or f"{asked['session_id']}:train:{asked['model_seq_id']}"
            training = self.models.setdefault(name, Training(len(self._tokenizer), self._stop))
            weights, optimizer = self.states[asked["path"]]
            training.model.load_state_dict(weights)
            if asked.get("optimizer") and optimizer is not None:
                training.optimizer = torch.optim.AdamW(training.model.parameters())
                training.optimizer.load_state_dict(optimizer)
        return self.answer({"type": "load_weights", "path": asked["path"], "model_id": name})

    # Sampling

    def create_sampling_session(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A sampler with the weights of a path, or with those of the base model."""
        session = self.name("sampler")
        with self._lock:
            if asked.get("model_path"):
                self.samplers[session] = self.paths[asked["model_path"]]
            else:
                self.samplers[session] = Training(len(self._tokenizer), self._stop).model.eval()
        return {"type": "create_sampling_session", "sampling_session_id": session}

    def sample(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Draw tokens, each from the whole distribution at the temperature."""
        prompt = [token for chunk in asked["prompt"]["chunks"] for token in chunk["tokens"]]
        session, settings = asked["sampling_session_id"], asked["sampling_params"]
        temperature = settings.get("temperature", 1.0) * (0.5 if self._fault == "sampler_temperature" else 1.0)
        names, sequences = [], []
        with self._lock, torch.no_grad():
            model = self.samplers[session]
            for _ in range(asked["num_samples"]):
                self._seed(session, prompt)
                drawn, each, ended = self._draw(model, prompt, temperature, settings)
                names.append(self.name("sequence"))
                sequences.append(
                    wire.SampledSequence(
                        stop_reason=wire.STOP_REASON_STOP if ended else wire.STOP_REASON_LENGTH,
                        tokens=np.asarray(drawn, np.int32).tobytes(),
                        logprobs=np.asarray(each, np.float32).tobytes(),
                    )
                )
            scored = b""
            if asked.get("prompt_logprobs"):
                own = log_probs(model, prompt[:-1], prompt[1:])
                scored = np.concatenate([[np.nan], own.numpy()]).astype(np.float32).tobytes()
        answer = wire.SampleResponse(sequences=sequences)
        if scored:
            answer.prompt_logprobs = scored
        return self.answer(answer.SerializeToString()) | {"sample_sequence_ids": names}

    def _seed(self, session: str, prompt: list[int]) -> None:
        """What is drawn depends on the sampler and the prompt, and not on which of the prompts of a rollout arrives first."""
        self._asked[session, tuple(prompt)] += 1
        place = (list(self.samplers).index(session), prompt, self._asked[session, tuple(prompt)])
        self._generator.manual_seed(zlib.crc32(repr(place).encode()))

    def _draw(
        self, model: TinyTransformer, prompt: list[int], temperature: float, settings: dict[str, Any]
    ) -> tuple[list[int], list[float], bool]:
        stops = settings.get("stop") or []
        drawn: list[int] = []
        each: list[float] = []
        for _ in range(settings.get("max_tokens") or 16):
            logits = model(torch.tensor([prompt + drawn]))[0, -1] / temperature
            token = int(torch.multinomial(logits.softmax(-1), 1, generator=self._generator))
            drawn.append(token)
            each.append(float(logits.log_softmax(-1)[token]))
            if token in stops or any(
                isinstance(stop, str) and self._tokenizer.decode(drawn).endswith(stop) for stop in stops
            ):
                return drawn, each, True
        return drawn, each, False


def _tensor(tensor: Any) -> torch.Tensor:
    kind = np.int64 if tensor.dtype == wire.DTYPE_INT64 else np.float32
    return torch.from_numpy(np.frombuffer(tensor.dense, kind).copy())


class Server(ThreadingHTTPServer):
    """Takes as many connections at once as an asynchronous loop opens."""

    request_queue_size = 128


class Handler(BaseHTTPRequestHandler):
    """Requests to `service`."""

    protocol_version = "HTTP/1.1"
    service: Service

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Which model a sampler or a run has, and whether the server is there."""
        sampler = self.path.rsplit("/", 1)[-1]
        self._reply(
            {"sampler_id": sampler, "base_model": "tiny/model"} if "/samplers/" in self.path else {"status": "ok"}
        )

    def do_POST(self) -> None:
        """Everything else."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        call = self.path.removeprefix("/api/v1/")
        try:
            if call == "forward_backward":
                self._reply(self.service.forward_backward(body))
                return
            asked = json.loads(body) if body else {}
            if call == "retrieve_future":
                kind, kept = self.service.results[asked["request_id"]]
                self._send(kind, kept)
                return
            self._reply(self._answer(call, asked))
        except Exception as error:  # noqa: BLE001 - the client is told, and the server goes on
            self._reply({"detail": f"{type(error).__name__}: {error}"}, status=400)

    def _answer(self, call: str, asked: dict[str, Any]) -> dict[str, Any]:
        service = self.service
        fixed = {
            "client/config": {"use_pyqwest_transport": False},
            "client/dynamic_config": {},
            "create_session": {"type": "create_session", "session_id": service.name("session")},
            "session_heartbeat": {"type": "session_heartbeat"},
            "weights_info": {"base_model": "tiny/model", "is_lora": True, "lora_rank": 32},
            "telemetry": {"status": "accepted"},
            "get_info": {
                "type": "get_info",
                "model_data": {"arch": "tiny", "model_name": "tiny/model"},
                "model_id": asked.get("model_id", ""),
            },
        }
        if call in fixed:
            return fixed[call]
        if call.endswith("/finish"):
            return {}
        calls = {
            "create_model": service.create_model,
            "optim_step": service.optim_step,
            "save_weights": service.save_weights,
            "load_weights": service.load_weights,
            "save_weights_for_sampler": service.save_weights_for_sampler,
            "create_sampling_session": service.create_sampling_session,
            "asample": service.sample,
        }
        return calls[call](asked)

    def _reply(self, answer: dict[str, Any], status: int = 200) -> None:
        self._send("application/json", json.dumps(answer).encode(), status)

    def _send(self, kind: str, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--break", dest="fault", default="", choices=("", *FAULTS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    Handler.service = Service(given.folder, given.fault)
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    partial = given.folder / "address.partial"
    partial.write_text(f"http://127.0.0.1:{server.server_port}")
    partial.rename(given.folder / "address")
    sys.stdin.read()


if __name__ == "__main__":
    main()
