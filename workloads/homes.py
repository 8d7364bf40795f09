"""Public homes of large traces: where, under which licence, and what the bytes must hash to where that is known."""

from __future__ import annotations

from typing import Final, NamedTuple

_AZURE: Final = (
    "https://raw.githubusercontent.com/Azure/AzurePublicDataset/b469a113cedca53ddc3bdea71a143dc4b7d8700c/data"
)
_AZURE_2024: Final = "https://azurepublicdatasettraces.blob.core.windows.net/azurellminfererencetrace"
_BURSTGPT: Final = "https://github.com/HPMLL/BurstGPT/releases/download"
_MOONCAKE: Final = (
    "https://raw.githubusercontent.com/kvcache-ai/Mooncake/3b5a594133958449a1feaf1c9e0fc1b553e34a28/FAST25-release"
)
_BAILIAN: Final = "https://media.githubusercontent.com/media/alibaba-edu/qwen-bailian-usagetraces-anon"
_BAILIAN_COMMIT: Final = "0b4273a1d8a83935b9d9356e78f95c31f2ac64cf"

_CC_BY: Final = "CC BY 4.0"
_SPLITWISE: Final = "Patel et al., Splitwise, ISCA 2024"
_DYNAMOLLM: Final = "Stojkovic et al., DynamoLLM, arXiv 2408.00741"
_BURST: Final = "Wang et al., BurstGPT, arXiv 2401.17644"
_KIMI: Final = "Qin et al., Mooncake, FAST 2025"
_QWEN: Final = "Wang et al., KVCache Cache in the Wild, USENIX ATC 2025"


class Home(NamedTuple):
    """A file that somebody publishes."""

    url: str
    licence: str
    cite: str
    what: str
    sha256: str | None = None
    """Of the file as served; None where nobody here has held it: the first download then records it."""
    read_with: str = ""
    """Options that reading it needs."""

    @property
    def file_name(self) -> str:
        return self.url.rpartition("/")[2]


HOMES: Final[dict[str, Home]] = {
    "azure-2023-conv": Home(
        f"{_AZURE}/AzureLLMInferenceTrace_conv.csv",
        _CC_BY,
        _SPLITWISE,
        "19,366 rows, an hour of conversations",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
    ),
    "azure-2023-code": Home(
        f"{_AZURE}/AzureLLMInferenceTrace_code.csv", _CC_BY, _SPLITWISE, "8,819 rows, an hour of code completion"
    ),
    "azure-2024-conv": Home(
        f"{_AZURE_2024}/AzureLLMInferenceTrace_conv_1week.csv", _CC_BY, _DYNAMOLLM, "27,303,999 rows, a week"
    ),
    "azure-2024-code": Home(
        f"{_AZURE_2024}/AzureLLMInferenceTrace_code_1week.csv", _CC_BY, _DYNAMOLLM, "16,803,695 rows, a week"
    ),
    "azure-2025-multimodal": Home(
        "https://github.com/Azure/AzurePublicDataset/raw/master/data/AzureLMMInferenceTrace_multimodal.csv.gz",
        _CC_BY,
        "Qiu et al., ModServe, SoCC 2025",
        "1,000,000 rows, a week; images are not counted",
    ),
    "burstgpt-1": Home(f"{_BURSTGPT}/v1.1/BurstGPT_1.csv", _CC_BY, _BURST, "1,429,737 rows, 61 days, with failures"),
    "burstgpt-2": Home(f"{_BURSTGPT}/v1.1/BurstGPT_2.csv", _CC_BY, _BURST, "the next 60 days, with failures"),
    "burstgpt-3": Home(f"{_BURSTGPT}/v2.0/BurstGPT_3.csv", _CC_BY, _BURST, "5,344,021 rows with sessions"),
    "mooncake-conversation": Home(
        f"{_MOONCAKE}/traces/conversation_trace.jsonl",
        "Apache-2.0",
        _KIMI,
        "12,031 rows with block ids, an hour",
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
    ),
    "mooncake-toolagent": Home(
        f"{_MOONCAKE}/traces/toolagent_trace.jsonl", "Apache-2.0", _KIMI, "23,608 rows with block ids, an hour"
    ),
    "mooncake-synthetic": Home(
        f"{_MOONCAKE}/traces/synthetic_trace.jsonl", "Apache-2.0", _KIMI, "3,993 rows with block ids"
    ),
    "bailian-to-c": Home(
        f"{_BAILIAN}/main/qwen_traceA_blksz_16.jsonl", "Apache-2.0", _QWEN, "two hours of chat, with block ids"
    ),
    "bailian-to-b": Home(
        f"{_BAILIAN}/main/qwen_traceB_blksz_16.jsonl", "Apache-2.0", _QWEN, "two hours of API calls, with block ids"
    ),
    "bailian-coder": Home(
        f"{_BAILIAN}/{_BAILIAN_COMMIT}/qwen_coder_blksz_16.jsonl",
        "Apache-2.0",
        _QWEN,
        "132,054,902 bytes, with block ids",
        "3d74974cebb7bccb69b1ca6ea210a44d9a3033443c0271ed015327284dea1aff",
    ),
    "bailian-thinking": Home(
        f"{_BAILIAN}/{_BAILIAN_COMMIT}/qwen_thinking_blksz_16.jsonl",
        "Apache-2.0",
        _QWEN,
        "27,901,454 bytes, with block ids",
        "41ac36d9d1b54d084eeb6b05e9d142ba9d02f8bf79cfc9fff418d8ab7cdee906",
    ),
    "sharegpt-v3": Home(
        "https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/resolve/main/"
        "ShareGPT_V3_unfiltered_cleaned_split.json",
        "none stated: texts of users, for research at your own judgement",
        "ShareGPT, as cleaned for Vicuna",
        "672,837,942 bytes of talks",
        read_with="--recipe first-human-pair --tokenizer tokenizer.json",
    ),
}
