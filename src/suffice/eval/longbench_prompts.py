"""The prompts of LongBench's tasks, in words of our own.

As LongBench describes them: what to do, the context, what to do once more, the question, and the
beginning of the answer. A long prompt loses its middle, so both instructions survive. Fields of a
row are inserted as {context} and {input}.
"""

from __future__ import annotations

_PHRASE = "Reply with the answer alone, a phrase of a few words, and explain nothing."
_NUMBER = "Reply with the number alone"


def _framed(lead: str, name: str, ask: str, question: str = "") -> str:
    """Return a prompt: instruction, named context, instruction, question, start of the answer."""
    return "\n\n".join(filter(None, (lead, f"{name}:\n{{context}}", ask, question)))


_ARTICLE = (
    f'{_PHRASE} To a question of yes or no, reply "yes" or "no". If the article does not hold the '
    'answer, reply "unanswerable".'
)
_PASSAGES = _framed(
    f"Read the passages below and answer the question that follows them. {_PHRASE}",
    "Passages",
    f"Answer this question by what the passages above say. {_PHRASE}",
    "Question: {input}\nAnswer:",
)
_CODE = "Continue the program below with its next line.\n"
PROMPTS = {
    "narrativeqa": _framed(
        f"Read the story below, a novel or a film script, and answer the question. {_PHRASE}",
        "Story",
        f"Answer this question about the story above. {_PHRASE}",
        "Question: {input}\nAnswer:",
    ),
    "qasper": _framed(
        f"Read the scientific article below and answer the question. {_ARTICLE}",
        "Article",
        f"Answer this question by the article above. {_ARTICLE}",
        "Question: {input}\nAnswer:",
    ),
    "multifieldqa_en": _framed(
        "Read the text below and answer the question in brief.",
        "Text",
        "Answer this question by the text above. Reply with nothing but the answer.",
        "Question: {input}\nAnswer:",
    ),
    "multifieldqa_zh": _framed(
        "请阅读下面的文章并简短地回答问题。",
        "文章",
        "请根据上文回答这个问题。只写出答案。",
        "问题: {input}\n答案:",
    ),
    "hotpotqa": _PASSAGES,
    "2wikimqa": _PASSAGES,
    "musique": _PASSAGES,
    "dureader": _framed(
        "请阅读下面的文章并回答问题。", "文章", "请根据上文回答这个问题。", "问题: {input}\n答案:"
    ),
    "gov_report": _framed(
        "Below is a report of a government agency. Summarize it on one page.",
        "Report",
        "Summarize the report above on one page.",
        "Summary:",
    ),
    "qmsum": _framed(
        "Below are the minutes of a meeting. Answer the request about them in a few sentences.",
        "Minutes",
        "Answer this request about the meeting above in a few sentences.",
        "Request: {input}\nAnswer:",
    ),
    "multi_news": _framed(
        "Below are several articles from the news. Summarize them together on one page.",
        "Articles",
        "Summarize all the articles above together on one page.",
        "Summary:",
    ),
    "vcsum": _framed("下面是一份会议记录。请写出会议的总结。", "会议记录", "总结:"),
    "trec": "Name the type of the last question, as the examples do.\n\n{context}\n{input}",
    "triviaqa": (
        "Answer the last question by its passage, as the examples do. Reply with nothing but the "
        "answer.\n\n{context}\n\n{input}"
    ),
    "samsum": (
        "Summarize the last dialogue in one or two sentences, as the examples do.\n\n"
        "{context}\n\n{input}"
    ),
    "lsht": "请像例子那样写出最后一条新闻的类别。\n\n{context}\n{input}",
    "passage_count": _framed(
        "Below are paragraphs from Wikipedia. Some of them are there more than once. Count the "
        "different ones.",
        "Paragraphs",
        f"How many different paragraphs are above, each counted once? {_NUMBER}, such as 7.",
        "Number of different paragraphs:",
    ),
    "passage_retrieval_en": _framed(
        "Below are 30 paragraphs from Wikipedia and the summary of one of them. Find that one.",
        "Paragraphs",
        "Which of the paragraphs above does this summary belong to? Reply with its number, such as "
        '"Paragraph 7".\n\nSummary: {input}',
        "Answer:",
    ),
    "passage_retrieval_zh": _framed(
        "下面是若干段落和其中一段的摘要。请找出是哪一段。",
        "段落",
        '这个摘要属于上面哪一段? 请写出编号: 例如 "段落7"。\n\n摘要: {input}',
        "答案:",
    ),
    "lcc": f"{_CODE}{{context}}Next line:\n",
    "repobench-p": f"{_CODE}{{context}}{{input}}Next line:\n",
}


def prompt_of(task: str, context: str, question: str) -> str:
    """Return the prompt of a row."""
    return PROMPTS[task].format(context=context, input=question)
