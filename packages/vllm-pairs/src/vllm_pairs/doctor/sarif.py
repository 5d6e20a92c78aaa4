"""A report as SARIF 2.1.0, for code-scanning views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_pairs.doctor.rules import RULES

if TYPE_CHECKING:
    from vllm_pairs.doctor.findings import Confidence, Finding, Report

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(report: Report, confidence: Confidence, version: str) -> dict[str, Any]:
    """The findings of at least a confidence, suppressed ones marked as such."""
    rules = [
        {
            "id": rule.id,
            "name": rule.kind,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": rule.why},
            "help": {"text": rule.fix},
        }
        for rule in RULES
    ]
    results = [_result(finding) for finding in report.at(confidence)]
    results += [{**_result(finding), "suppressions": [{"kind": "external"}]} for finding in report.suppressed]
    driver = {"name": "vllm-pairs doctor", "version": version, "rules": rules}
    properties = {
        side: {"name": tree.name, "version": tree.version, "sha256": tree.sha256}
        for side, tree in (("core", report.core), ("plugin", report.plugin))
    }
    run = {"tool": {"driver": driver}, "results": results, "properties": properties, "columnKind": "unicodeCodePoints"}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(finding: Finding) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": finding.level,
        "message": {"text": finding.message},
        "locations": [_location(finding.file, finding.line, finding.end_line)],
        "partialFingerprints": {"doctorFinding/v1": finding.id},
        "properties": {
            "severity": finding.severity,
            "confidence": finding.confidence,
            "symbol": finding.symbol,
            "coreHas": finding.core_has,
        },
    }
    if finding.core_file is not None and finding.core_line is not None:
        related = _location(finding.core_file, finding.core_line, finding.core_line)
        result["relatedLocations"] = [{**related, "message": {"text": finding.core_has or "the core's side"}}]
    return result


def _location(file: str, line: int, end_line: int) -> dict[str, Any]:
    region = {"startLine": line, "endLine": end_line}
    return {"physicalLocation": {"artifactLocation": {"uri": file}, "region": region}}
