"""The paths that take a body: who answers it, what it may have, and what for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from suffice.serve.http.front import Front
from suffice.serve.interfaces import (
    chat,
    completion,
    decision_forms,
    embeddings,
    llama_cpp,
    message_request,
    messages,
    ollama,
    ollama_request,
    ranking,
    response_request,
    responses,
    tokens,
)

Route = Callable[[Front, Request, bytes, str], Awaitable[Response]]
POSTED: tuple[tuple[str, Route, type[BaseModel], str], ...] = (
    ("/v1/chat/completions", chat.complete, chat.Chat, "Answer a conversation."),
    ("/v1/completions", completion.complete, completion.Completion, "Continue a text."),
    (
        "/v1/responses",
        responses.create,
        response_request.Responses,
        "Answer, by the Responses API.",
    ),
    ("/v1/messages", messages.create, message_request.Create, "Answer, by Anthropic's API."),
    (
        "/v1/messages/count_tokens",
        messages.count,
        message_request.Messages,
        "Count a request's tokens, by Anthropic's API.",
    ),
    (
        "/v1/chat/completions/input_tokens",
        chat.count,
        chat.Chat,
        "Count the tokens of a conversation.",
    ),
    (
        "/v1/responses/input_tokens",
        responses.count,
        response_request.Responses,
        "Count a request's tokens, by the Responses API.",
    ),
    ("/api/chat", ollama.chat, ollama_request.Talk, "Answer, by Ollama's API."),
    ("/api/generate", ollama.generate, ollama_request.Generate, "Continue, by Ollama's API."),
    ("/v1/embeddings", embeddings.create, embeddings.Embeddings, "Embed texts."),
    ("/v1/rerank", ranking.rerank, ranking.Rerank, "Order documents by a query."),
    ("/v2/rerank", ranking.rerank, ranking.Rerank, "Order documents, by Cohere's API."),
    ("/v1/score", ranking.score, ranking.Score, "Score pairs of texts."),
    ("/v1/decisions", decision_forms.decide, decision_forms.Decisions, "Answer closed questions."),
    (
        "/v1/systemone",
        decision_forms.system_one,
        decision_forms.SystemOne,
        "Answer closed questions, by TypeSafe's API.",
    ),
    ("/api/embed", embeddings.embed, embeddings.Embed, "Embed texts, by Ollama's API."),
    ("/api/embeddings", embeddings.old_embed, embeddings.OldEmbed, "Embed, by Ollama's older API."),
    ("/embedding", embeddings.embedding, embeddings.Embedding, "Embed, by llama.cpp's API."),
    ("/api/show", ollama.show, ollama.Named, "Describe the model, by Ollama's API."),
    ("/api/pull", ollama.pull, ollama.Named, "Say that the model is here, by Ollama's API."),
    ("/completion", llama_cpp.complete, completion.Completion, "Continue, by llama.cpp's API."),
    ("/infill", llama_cpp.infill, llama_cpp.Infill, "Fill in, by llama.cpp's API."),
    (
        "/apply-template",
        llama_cpp.apply_template,
        llama_cpp.Template,
        "Show a conversation's text.",
    ),
    ("/tokenize", tokens.tokenize, tokens.Tokenize, "Turn a text or a conversation into tokens."),
    ("/detokenize", tokens.detokenize, tokens.Detokenize, "Turn tokens into text."),
)
