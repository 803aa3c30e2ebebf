"""Trainers that take a loader of ours for torch's, and resume in the middle of an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
)

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.map import SequenceWrapper

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore")]

COUNT, SIZE, EPOCHS, SAVED_AT = 24, 4, 2, 4


class Line(Dataset[dict[str, torch.Tensor]]):
    """Points of a line."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        x = torch.tensor([number / COUNT])
        return {"x": x, "labels": 2 * x - 1}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.layer(x)
        return {"loss": nn.functional.mse_loss(y, labels), "logits": y}

    def weights(self) -> list[list[float]]:
        return [each.flatten().tolist() for each in self.parameters()]


def new_loader(workers: int = 2) -> DataLoader2[Any]:
    return DataLoader2.from_dataset(
        Line(), batch_size=SIZE, shuffle=True, num_workers=workers, seed=1
    )


def test_transformers_trains_evaluates_and_resumes_to_the_same_weights(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("accelerate", reason="the Trainer of transformers needs accelerate")

    class KeepLoader(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        def __init__(self, loader: DataLoader2[Any]) -> None:
            self.loader = loader

        def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
            torch.save(self.loader.state_dict(include_datapipe=False), folder / "loader.pt")

    class Trainer(transformers.Trainer):  # type: ignore[misc,name-defined]
        def get_train_dataloader(self) -> Any:
            return loader

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return evaluation

    arguments = transformers.TrainingArguments(
        str(tmp_path),
        num_train_epochs=EPOCHS,
        save_steps=SAVED_AT,
        eval_strategy="epoch",
        ignore_data_skip=True,
        learning_rate=0.1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )

    def trained(checkpoint: Path | None) -> tuple[list[list[float]], int, float]:
        model = Model()
        trainer = Trainer(
            model,
            arguments,
            train_dataset=Line(),
            eval_dataset=Line(),
            callbacks=[KeepLoader(loader)],
        )
        if checkpoint is not None:
            loader.load_state_dict(torch.load(checkpoint / "loader.pt"))
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        return model.weights(), trainer.state.global_step, trainer.evaluate()["eval_loss"]

    with DataLoader2.from_dataset(Line(), batch_size=SIZE) as evaluation:
        with new_loader() as loader:
            whole = trained(None)
        assert whole[1] == EPOCHS * COUNT // SIZE
        with new_loader() as loader:
            assert trained(tmp_path / f"checkpoint-{SAVED_AT}") == whole


def test_transformers_that_would_skip_batches_itself_says_what_to_do(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    with new_loader() as loader, pytest.raises(AttributeError, match="ignore_data_skip"):
        accelerate.skip_first_batches(loader, 2)


def test_accelerate_leaves_a_loader_as_it_is_and_trains() -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    accelerator = accelerate.Accelerator(cpu=True)

    def trained(loader: DataLoader2[Any], model: Model, limit: int | None = None) -> None:
        prepared, optimizer, same = accelerator.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1), loader
        )
        assert same is loader
        loader.limit(limit)
        for batch in loader:
            accelerator.backward(prepared(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()

    whole, halves = Model(), Model()
    with new_loader() as loader:
        trained(loader, whole)
    with new_loader() as loader:
        trained(loader, halves, SAVED_AT)
        state = loader.state_dict()
    with new_loader() as loader:
        loader.load_state_dict(state)
        trained(loader, halves)
    assert halves.weights() == whole.weights()


def test_accelerate_is_not_told_of_the_end_of_an_epoch() -> None:
    # So an accumulation that an epoch ends in goes on in the next one, as the docs say. With a
    # loader of torch's it would be cut off there.
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    with new_loader(0) as loader:
        prepared, loader = accelerator.prepare(Model(), loader)
        steps, count = [], 0
        for _ in range(2):
            for _ in loader:
                count += 1
                with accelerator.accumulate(prepared):
                    if accelerator.sync_gradients:
                        steps.append(count)
    assert steps == [4, 8, 12]


def test_fabric_saves_and_loads_a_loader_that_is_in_its_state(tmp_path: Path) -> None:
    # As litgpt's pretraining holds it; its finetuning counts and joins the data sets as well.
    lightning = pytest.importorskip("lightning", reason="needs lightning")
    fabric = lightning.Fabric(accelerator="cpu", devices=1)

    def read(stop: int, *, load: bool) -> list[Any]:
        with new_loader() as loader, DataLoader2.from_dataset(Line(), batch_size=3) as validation:
            both = ConcatDataset([loader.dataset, validation.dataset])
            assert (len(both), len(loader)) == (2 * COUNT, COUNT // SIZE)
            state, seen = {"step": 0, "loader": loader}, []
            if load:
                fabric.load(tmp_path / "state", state)
            while state["step"] < stop:
                # Such a loop begins the next epoch when it has seen the end of one.
                for batch in loader:
                    state["step"] += 1
                    seen.append(batch["x"].flatten().tolist())
                    if state["step"] % 4 == 0:
                        assert len([None for _ in validation]) == 8
                    if state["step"] == stop:
                        break
            fabric.save(tmp_path / "state", state)
        return seen

    whole = read(16, load=False)
    for saved in (3, 6, 9):
        read(saved, load=False)
        assert read(16, load=True) == whole[saved:]


def test_lightning_fabric_trains_and_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="needs lightning")

    def trained(loader: DataLoader2[Any], limit: int | None, load: Path | None) -> Any:
        fabric = lightning.Fabric(accelerator="cpu", devices=1)
        model = Model()
        prepared, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        if load is not None:
            # Fabric restores the model; what it saved of the loader is in what it returns.
            loader.load_state_dict(fabric.load(load, {"model": prepared})["loader"])
        loader.limit(limit)
        for batch in loader:
            optimizer.zero_grad()
            fabric.backward(prepared(**batch)["loss"])
            optimizer.step()
        place = loader.state_dict(include_datapipe=False)
        fabric.save(tmp_path / "state.ckpt", {"model": prepared, "loader": place})
        return model.weights()

    with new_loader() as loader:
        whole = trained(loader, None, None)
    with new_loader() as loader:
        trained(loader, SAVED_AT, None)
    with new_loader() as loader:
        assert trained(loader, None, tmp_path / "state.ckpt") == whole


def test_ignite_trains_and_resumes_to_the_same_weights() -> None:
    ignite = pytest.importorskip("ignite.engine", reason="needs pytorch-ignite")

    def trained(loader: DataLoader2[Any], model: Model, end: int | None = None) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(engine: Any, batch: Any) -> None:
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()
            if engine.state.iteration == end:
                engine.terminate()

        return ignite.Engine(step).run(loader, max_epochs=1, epoch_length=len(loader))

    whole, halves = Model(), Model()
    with new_loader() as loader:
        assert trained(loader, whole).iteration == COUNT // SIZE
    with new_loader() as loader:
        trained(loader, halves, SAVED_AT)
        state = loader.state_dict()
    with new_loader() as loader:
        loader.load_state_dict(state)
        rest = COUNT // SIZE - SAVED_AT
        trained(loader, halves, rest)
    assert halves.weights() == whole.weights()


def test_lightning_resumes_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="needs lightning")
    seen: list[list[float]] = []

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any) -> torch.Tensor:
            seen.append(batch["x"].flatten().tolist())
            return self.model(**batch)["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(folder: Path, checkpoint: Path | None = None) -> tuple[Any, Any]:
        seen.clear()
        saving = lightning.pytorch.callbacks.ModelCheckpoint(
            folder, filename="{step}", every_n_train_steps=SAVED_AT, save_top_k=-1
        )
        trainer = lightning.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            logger=False,
            callbacks=[saving],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        module = Module()
        with new_loader() as loader:
            trainer.fit(module, loader, ckpt_path=checkpoint)
        return list(seen), module.model.weights()

    batches, weights = fit(tmp_path / "first")
    rest = fit(tmp_path / "second", tmp_path / f"first/step={SAVED_AT}.ckpt")
    assert rest == (batches[SAVED_AT:], weights)


def test_a_loader_with_its_own_service_is_taken_too() -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    graph = SequenceWrapper(Line()).shuffle().batch(SIZE).sharding_filter().collate()
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        assert accelerate.Accelerator(cpu=True).prepare(loader) is loader
        assert (loader.batch_size, len(loader)) == (SIZE, COUNT // SIZE)


class Points(Dataset[torch.Tensor]):
    """Random points, as bug reports for Lightning have them."""

    def __init__(self) -> None:
        self.points = torch.randn(18, 32, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.points[number]


POINTS = Points()
#: An order that a trainer may look at to see whether a loader shuffles.
ORDERS: dict[str, dict[str, Any]] = {
    "in order": {"batch_size": 4},
    "a sampler": {"batch_size": 4, "sampler": SequentialSampler(POINTS)},
    "a batch sampler": {"batch_sampler": BatchSampler(SequentialSampler(POINTS), 4, False)},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "a random sampler": {"batch_size": 4, "sampler": RandomSampler(POINTS)},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_fits_validates_tests_and_predicts_as_with_torchs_loader(
    order: str, workers: int, tmp_path: Path
) -> None:
    lightning = pytest.importorskip("lightning", reason="needs lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(32, 2)

        def training_step(self, batch: Any, number: int) -> Any:
            return {"loss": self.layer(batch).sum()}

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("validated", self.layer(batch).sum(), reduce_fx="sum")

        def test_step(self, batch: Any, number: int) -> None:
            self.log("tested", self.layer(batch).square().sum(), reduce_fx="sum")

        def predict_step(self, batch: Any, number: int) -> Any:
            return self.layer(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.001)

    def run(train: Any, evaluate: Any) -> list[Any]:
        module = Module()
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            default_root_dir=tmp_path,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, train, evaluate)
        figures = [trainer.global_step, trainer.callback_metrics["validated"].item()]
        figures += [trainer.validate(module, evaluate, verbose=False)[0]["validated"]]
        figures += [trainer.test(module, evaluate, verbose=False)[0]["tested"]]
        return [*figures, torch.cat(trainer.predict(module, evaluate)).sum().item()]

    settings = {**ORDERS[order], "num_workers": workers}
    expected = run(DataLoader(POINTS, batch_size=6), DataLoader(POINTS, **ORDERS[order]))
    with (
        DataLoader2.from_dataset(POINTS, batch_size=6, num_workers=workers) as train,
        DataLoader2.from_dataset(POINTS, **settings) as evaluate,
    ):
        # Where the evaluation is shuffled its sums are added up in another order.
        assert run(train, evaluate) == pytest.approx(expected, rel=1e-3)


def test_accelerate_keeps_a_loader_that_is_registered_in_its_checkpoints(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")

    def trained(loader: DataLoader2[Any], stop: int | None, load: bool) -> Any:
        accelerator = accelerate.Accelerator(cpu=True)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        accelerator.register_for_checkpointing(loader)
        if load:
            accelerator.load_state(tmp_path)
        for step, batch in enumerate(loader, start=1):
            accelerator.backward(prepared(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            if step == stop:
                accelerator.save_state(tmp_path)
                break
        return model.weights()

    with new_loader() as loader:
        whole = trained(loader, None, False)
    with new_loader() as loader:
        assert trained(loader, SAVED_AT, False) != whole
    with new_loader() as loader:
        assert trained(loader, None, True) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_ignites_checkpoint_resumes_a_run_in_the_middle_of_its_second_epoch(
    workers: int, tmp_path: Path
) -> None:
    ignite = pytest.importorskip("ignite.engine", reason="needs pytorch-ignite")
    from ignite.handlers import Checkpoint, DiskSaver

    stop = COUNT // SIZE + 2

    def trained(loader: DataLoader2[Any], stops: bool, resumes: bool) -> Any:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen: list[Any] = []

        def step(engine: Any, batch: Any) -> None:
            seen.append((engine.state.iteration, batch["x"].flatten().tolist()))
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()

        trainer = ignite.Engine(step)
        kept = {"trainer": trainer, "model": model, "optimizer": optimizer, "loader": loader}
        saving = Checkpoint(kept, DiskSaver(tmp_path, require_empty=False), filename_pattern="it")
        if stops:
            at_stop = ignite.Events.ITERATION_COMPLETED(once=stop)
            trainer.add_event_handler(at_stop, saving)
            trainer.add_event_handler(at_stop, trainer.terminate)
        if resumes:
            Checkpoint.load_objects(kept, torch.load(tmp_path / "it"))
        trainer.run(loader, max_epochs=3)
        return seen, model.weights()

    with new_loader(workers) as loader:
        seen, weights = trained(loader, False, False)
    with new_loader(workers) as loader:
        assert trained(loader, True, False)[0] == seen[:stop]
    with new_loader(workers) as loader:
        assert trained(loader, False, True) == (seen[stop:], weights)


@pytest.mark.parametrize("workers", [0, 2])
def test_ignite_evaluates_the_training_loader_between_two_epochs(workers: int) -> None:
    ignite = pytest.importorskip("ignite.engine", reason="needs pytorch-ignite")
    trained: list[float] = []
    evaluated: list[float] = []
    trainer = ignite.Engine(lambda _, batch: trained.extend(batch["x"].flatten().tolist()))
    evaluator = ignite.Engine(lambda _, batch: evaluated.extend(batch["x"].flatten().tolist()))
    with new_loader(workers) as loader:
        trainer.add_event_handler(ignite.Events.EPOCH_COMPLETED, lambda _: evaluator.run(loader))
        trainer.run(loader, max_epochs=3)
    points = [round(number / COUNT, 5) for number in range(COUNT)]
    assert sorted(round(x, 5) for x in trained) == sorted(points * 3)
    assert sorted(round(x, 5) for x in evaluated) == sorted(points * 3)
