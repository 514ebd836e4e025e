import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.errors import SpecError
from rollout.models.resolve import resolve_model
from rollout.rendering import build_renderer
from rollout.types import Message


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return {
        name: resolve_model(f"rollout://{name}", cache_dir=cache).path
        for name in ("tiny-qwen2", "tiny-llama")
    }


@pytest.fixture
def edited(models, tmp_path):
    """A copy of a tiny model whose tokenizer configuration is changed."""

    def edit(template=None, **changes):
        folder = tmp_path / "edited"
        shutil.copytree(models["tiny-qwen2"], folder)
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        if template is not None:
            (folder / "chat_template.jinja").write_text(template)
        return folder

    return edit


def user(text):
    return Message(role="user", content=text)


def assistant(text):
    return Message(role="assistant", content=text)


def raw(renderer, ids):
    return renderer.tokenizer.tokenizer.decode(list(ids), skip_special_tokens=False)


def test_a_prompt_ends_with_the_generation_prompt(models):
    renderer = build_renderer(models["tiny-qwen2"])

    assert raw(renderer, renderer.render_prompt([user("1+2")])) == (
        "<|im_start|>user\n1+2<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_mask_covers_what_the_assistant_says_and_its_end(models):
    renderer = build_renderer(models["tiny-qwen2"])

    ids, mask = renderer.render_training([user("1+2"), assistant("3"), user("+4"), assistant("7")])

    trained = [token for token, kept in zip(ids, mask, strict=True) if kept]
    assert raw(renderer, trained) == "3<|im_end|>7<|im_end|>"
    assert mask[-1] == 1  # nothing behind the last trained token


@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-llama"])
@pytest.mark.parametrize("template", [None, "plain"])
def test_a_text_to_go_on_with_has_no_template_and_what_the_tokenizer_adds(models, name, template):
    renderer = build_renderer(models[name], template)
    tokenizer = renderer.tokenizer.tokenizer

    ids = renderer.render_text("1+2")

    assert ids == tuple(tokenizer.encode("1+2").ids)
    assert raw(renderer, ids).endswith("1+2")
    assert "user" not in raw(renderer, ids)


@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-llama"])
@pytest.mark.parametrize("template", [None, "plain"])
@settings(max_examples=30, deadline=None)
@given(question=st.text(max_size=20), answer=st.text(max_size=20))
def test_training_tokens_are_the_prompt_then_the_completion(
    models, name, template, question, answer
):
    """What is trained on begins with exactly the tokens that generation would have been given."""
    renderer = build_renderer(models[name], template)
    question, answer = question.strip(), answer.strip()

    prompt = renderer.render_prompt([user(question)])
    ids, mask = renderer.render_training([user(question), assistant(answer)])

    assert ids[: len(prompt)] == prompt
    assert mask == (0,) * len(prompt) + (1,) * (len(ids) - len(prompt))
    assert ids[-1] in renderer.stop_token_ids
    assert renderer.decode(ids[len(prompt) :]) == answer


def test_plain_is_prompt_text_completion_and_end(models):
    renderer = build_renderer(models["tiny-qwen2"], "plain")

    ids, mask = renderer.render_training([user("12+34="), assistant("46")])

    assert raw(renderer, ids) == "12+34=46<|im_end|>"
    assert mask == (0,) * 6 + (1,) * 3


def test_plain_parts_a_system_message_from_the_prompt(models):
    renderer = build_renderer(models["tiny-qwen2"], "plain")

    ids = renderer.render_prompt([Message(role="system", content="Add."), user("1+2=")])

    assert raw(renderer, ids) == "Add.\n\n1+2="


def test_a_model_without_a_template_is_rendered_plain(models, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(models["tiny-qwen2"], folder)
    (folder / "chat_template.jinja").unlink()

    assert build_renderer(folder).name == "plain"


def test_what_ends_a_turn_comes_from_tokenizer_and_template(edited):
    renderer = build_renderer(edited(eos_token="<|endoftext|>"))

    assert [raw(renderer, [i]) for i in renderer.stop_token_ids] == ["<|endoftext|>", "<|im_end|>"]


def test_a_tokenizer_without_a_pad_token_pads_with_its_end_token(edited):
    renderer = build_renderer(edited(pad_token=None))

    assert renderer.pad_token_id == renderer.stop_token_ids[0]


def test_a_tokenizer_without_pad_and_end_tokens_is_refused(edited):
    with pytest.raises(SpecError, match="neither a pad nor an end token"):
        build_renderer(edited(pad_token=None, eos_token=None))


def test_plain_without_an_end_token_is_refused(edited):
    with pytest.raises(SpecError, match="no end token"):
        build_renderer(edited(eos_token=None), "plain")


def test_a_turn_that_nothing_ends_is_refused(edited):
    template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    template += "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"

    with pytest.raises(SpecError, match="could never stop"):
        build_renderer(edited(template, eos_token=None))


def test_an_end_token_outside_the_vocabulary_is_refused(edited):
    with pytest.raises(SpecError, match="eos_token '<none>' is not in its vocabulary"):
        build_renderer(edited(eos_token="<none>"))


def test_a_template_with_a_syntax_error_names_its_line(edited):
    with pytest.raises(SpecError, match="line 2"):
        build_renderer(edited("{{ bos_token }}\n{% if %}"))


def test_a_template_that_refuses_a_role_says_so(edited):
    template = (
        "{% for m in messages %}"
        "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endfor %}"
    )
    renderer = build_renderer(edited(template))

    with pytest.raises(SpecError, match=r"\[system, user\]: no system role"):
        renderer.render_prompt([Message(role="system", content="x"), user("y")])


def test_a_template_that_rewrites_earlier_turns_cannot_be_trained_on(edited):
    template = (
        "{% for m in messages %}{{ '<|im_start|>' }}"
        "{{ m.content if loop.last else '...' }}{{ '<|im_end|>' }}{% endfor %}"
    )
    renderer = build_renderer(edited(template))
    history = [user("a"), assistant("b"), user("c")]

    assert raw(renderer, renderer.render_prompt(history)).endswith("<|im_start|>c<|im_end|>")
    with pytest.raises(SpecError, match="rewritten by later turns"):
        renderer.render_training([*history, assistant("d")])


def test_a_template_may_mark_what_is_generated(edited):
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )

    _ids, mask = build_renderer(edited(template)).render_training([user("a"), assistant("b")])

    assert sum(mask) == 2


def test_an_unknown_template_name_lists_the_known_ones(models):
    with pytest.raises(SpecError, match="plain, chatml, llama3"):
        build_renderer(models["tiny-qwen2"], "vicuna")


def test_a_broken_tokenizer_file_is_named(models, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(models["tiny-qwen2"], folder)
    (folder / "tokenizer.json").write_text("{")

    with pytest.raises(SpecError, match=r"tokenizer\.json is broken"):
        build_renderer(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-llama"])
def test_transformers_renders_the_same_ids(models, name):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(models[name])
    ours = build_renderer(models[name])
    messages = [user("Größe 1+2?"), assistant("3"), user("sure?")]

    expected = theirs.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages],
        add_generation_prompt=True,
        return_dict=False,
    )

    assert list(ours.render_prompt(messages)) == expected
    assert len(theirs) == ours.tokenizer.tokenizer.get_vocab_size(with_added_tokens=True)


@pytest.mark.parametrize("template", ["plain", None])
def test_a_text_that_encodes_to_other_tokens_is_noticed(models, template):
    renderer = build_renderer(models["tiny-qwen2"], template)
    encoded = renderer.tokenizer.encode("the answer is 42")
    apart = tuple(t for letter in "the answer is 42" for t in renderer.tokenizer.encode(letter))
    end = renderer.stop_token_ids[0]
    assert renderer.survives_text((*encoded, end))
    assert renderer.survives_text(())
    assert (apart == encoded) == renderer.survives_text((*apart, end))
