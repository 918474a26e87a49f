"""The interchange schema: JSON lines or parquet that any trainer can write. `docs/ingest.md` documents it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.ingest import lines, parquet
from rlstep_hooks.ingest.advantages import NAMED, named
from rlstep_hooks.ingest.export import SCHEMA_VERSION, Asked, Export, ExportError, Header, Sample
from rlstep_hooks.planning.words import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rlstep_hooks.ingest.advantages import GroupEstimator

TITLE = "the interchange schema"
METADATA = b"rlstep_export"
"""Key of the header in the metadata of a parquet file."""
_FIELDS = Sample.__struct_fields__


def recognises(path: Path) -> bool:
    """Whether a file is of this schema: its first line is a header or a sample, or its columns are those of samples."""
    if path.suffix == ".parquet":
        return "rollout" in parquet.column_names(path)
    first = next(lines.raw_lines(path), None)
    if first is None:
        return False
    fields = lines.fields_of(first[1])
    return METADATA.decode() in fields or "rollout" in fields


def opened(paths: Sequence[Path], asked: Asked) -> Export:
    """Open the files of a run.

    Raises:
        ExportError: The header is none, or there is nothing in the files.
    """
    header = _header(paths[0])
    _check(header, paths[0])
    return Export(
        title=f"{TITLE} ({'parquet' if paths[0].suffix == '.parquet' else 'JSON lines'})",
        framework=header.framework if header is not None else "a trainer",
        version=header.version if header is not None else "",
        samples=_samples(paths),
        header=header,
        estimators=_estimators(header, paths[0]),
    )


def _header(path: Path) -> Header | None:
    place = f"{printable(str(path))}, line 1"
    if path.suffix == ".parquet":
        text = parquet.metadata(path).get(METADATA)
        place = f"{printable(str(path))}, metadata"
    else:
        found = next(lines.raw_lines(path), None)
        text = found[1] if found is not None and METADATA.decode() in lines.fields_of(found[1]) else None
    if text is None:
        return None
    return lines.decoded(text, msgspec.json.Decoder(Header), Header, place)


def _check(header: Header | None, path: Path) -> None:
    if header is None:
        return
    place = f"{printable(str(path))}, header"
    if header.rlstep_export != SCHEMA_VERSION:
        raise ExportError(f"{place}: field `rlstep_export`: expected {SCHEMA_VERSION}, got {header.rlstep_export}")
    for name in ("prompts_per_rollout", "samples_per_prompt", "rollouts"):
        value = getattr(header, name)
        if value is not None and not 1 <= value <= MOST:
            raise ExportError(f"{place}: field `{name}`: expected a number from 1 to {MOST}, got {value}")
    if header.max_age is not None and not 0 <= header.max_age <= MOST_AGE:
        raise ExportError(f"{place}: field `max_age`: expected a number from 0 to {MOST_AGE}, got {header.max_age}")
    if header.epsilon is not None and not 0 <= header.epsilon <= 1:
        raise ExportError(f"{place}: field `epsilon`: expected a number from 0 to 1, got {header.epsilon}")


MOST = 10_000_000
"""Above the samples of any rollout, and the rollouts of any run."""
MOST_AGE = 10_000


def _estimators(header: Header | None, path: Path) -> tuple[GroupEstimator, ...]:
    if header is None or header.estimator is None:
        return ()
    try:
        return named(header.estimator, header.epsilon)
    except KeyError:
        known = ", ".join(NAMED)
        raise ExportError(
            f"{printable(str(path))}, header: field `estimator`: expected one of {known}, got {printable(header.estimator)!r}"
        ) from None


def _samples(paths: Sequence[Path]) -> Iterator[Sample]:
    for path in paths:
        if path.suffix == ".parquet":
            present = [name for name in parquet.column_names(path) if name in _FIELDS]
            for number, row in parquet.rows(path, present):
                yield _bounded(lines.converted(row, Sample, f"{printable(str(path))}, row {number}"), path, number)
            continue
        decoder = msgspec.json.Decoder(Sample)
        for number, line in lines.raw_lines(path):
            if number == 1 and METADATA.decode() in lines.fields_of(line):
                continue
            place = f"{printable(str(path))}, line {number}"
            yield _bounded(lines.decoded(line, decoder, Sample, place), path, number)


def _bounded(sample: Sample, path: Path, number: int) -> Sample:
    """A sample whose numbers a record can hold.

    Raises:
        ExportError: One is beyond its bounds.
    """
    for name in ("rollout", "sampler_version", "policy_version"):
        value = getattr(sample, name)
        if value is not None and not 0 <= value <= MOST * MOST:
            raise ExportError(
                f"{printable(str(path))}, line {number}: field `{name}`: expected a number from 0 to {MOST * MOST}, got {value}"
            )
    return sample
