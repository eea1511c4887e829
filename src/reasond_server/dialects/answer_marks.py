"""How models announce an answer or a score, what stands beside it, and the names of choices, in many languages.

Sources: huggingface/lighteval#162, UKGovernmentBEIS/inspect_ai#5259, jundot/omlx#3668, NVIDIA-NeMo/Skills#1526,
openai/simple-evals#33, facebookresearch/deepconf#15; the phrases of simple-evals' multilingual multiple choice. Of
scores: truera/trulens#862, OpenAgentHQ/openagent-eval#74, modelscope/evalscope#1575; MT-Bench's `[[7]]`.
"""

from __future__ import annotations

from typing import Final

# A row a language: words that may stand before the noun, the nouns, and the words that may stand behind it. Words that
# are joined to the noun without a blank are written so.
_LANGUAGES: Final = (
    (
        "the |my |so,? |thus,? |hence,? |therefore,? |final |correct |right |best |overall |short |concise ",
        "answer|result|solution|correct option|correct choice|right option|best option|answer choice",
        " is| was| equals| would be| should be| must be| is therefore| is thus| is simply| choice is| option is",
    ),
    ("die |das |meine |endgültige |richtige |finale |korrekte ", "antwort|ergebnis|lösung", " ist| lautet| wäre"),
    ("la |le |ma |bonne ", "réponse|résultat|solution", " est| finale est| correcte est| finale| correcte"),
    ("la |el |mi ", "respuesta|resultado|solución", " es| final es| correcta es| final| correcta"),
    ("a |o |minha ", "resposta|resultado|solução", " é| final é| correta é| final| correta"),
    ("la |il |mia ", "risposta|risultato|soluzione", " è| finale è| corretta è| finale| corretta"),
    ("het |de |juiste |mijn ", "antwoord|resultaat", " is| luidt"),
    ("правильный |верный |окончательный |итоговый |мой ", "ответ|результат", " —| -| равен| будет"),
    ("правильна |остаточна ", "відповідь|результат", " —| -"),
    ("poprawna |ostateczna |prawidłowa ", "odpowiedź|wynik", " to| brzmi| końcowa"),
    ("správná |konečná ", "odpověď|výsledek", " je"),
    ("rätta |slutliga |korrekta ", "svar|svaret", " är| er"),
    ("doğru |nihai |son ", "cevap|yan\u0131t|sonuç", " şudur"),
    ("", "đáp án|câu trả lời|kết quả", " là| đúng là| cuối cùng là"),
    ("", "jawaban|jawabannya", " adalah| akhir adalah| akhir| yang benar adalah"),
    (
        "最终|最後の|最后|正确|正確|标准|因此|所以|故|本题|最終的な|正しい|最終",
        "答案|答え|解答|回答|正解",
        "是|为|為|は|应为|應為|选|選",
    ),
    ("최종 |정확한 ", "정답|답변|답|대답", "은|는"),
    ("ال|صحيحة ", "إجابة|جواب|إجابة النهائية|إجابة الصحيحة", " هي| هو"),
    ("सही |अंतिम ", "उत्तर", " है"),
    ("ה", "תשובה|תשובה הסופית", " היא"),
)


def _join(parts: list[str]) -> str:
    """Return an expression for one of `parts`, the longest first."""
    return "|".join(sorted({part for each in parts for part in each.split("|") if part}, key=len, reverse=True))


_BEFORE: Final = "|".join(before for before, _, _ in _LANGUAGES if before)
_NOUNS: Final = _join([nouns for _, nouns, _ in _LANGUAGES])
_BEHIND: Final = _join([behind for _, _, behind in _LANGUAGES])
# Markdown may stand around the words, and between them and the colon.
_DRESSING: Final = "[*_`]{0,3}"

ANNOUNCEMENT: Final = (
    rf"(?:{_BEFORE}){{0,4}}(?:{_NOUNS})(?![^\W\u3040-\u9fff\uac00-\ud7a3]){_DRESSING}"
    rf"(?:(?:{_BEHIND}){_DRESSING} ?[:=\uff1a]?|[ \t]?(?:[:=\uff1a\u2192]|[-=]>))"
)
"""An announcement with a verb, a colon or an equals sign; to be matched without regard to case."""

SIGNS: Final = (
    *(noun.casefold().replace("\u0131", "i") for noun in _NOUNS.split("|")),
    "选",
    "選",
    "答",
    "a:",
    "a\uff1a",
    "#",
)
"""What is in every line that has an announcement, in small letters without a dotless i."""

HEADING: Final = rf"(?:{_BEFORE}){{0,4}}(?:{_NOUNS})"
"""The words of an announcement that is a heading."""

CONCLUSIONS: Final = (
    r"so(?! (?:far|that|much|many|long|as)\b)|therefore|thus|hence|consequently|finally|in total|in conclusion|"
    "as a result|this means|altogether|overall|somit|daher|folglich|insgesamt|donc|ainsi|finalement|"
    "par conséquent|au total|por lo tanto|así que|entonces|en total|portanto|assim|logo|quindi|pertanto|dus|"
    "следовательно|итак|таким образом|значит|więc|zatem|takže|所以|因此|故|综上|总共|したがって|よって|따라서|그러므로"
)
"""Words that begin a sentence which concludes."""

CHOSEN: Final = r"(?:故|应|應|因此|所以|本题)[选選](?:择|擇)?[:\uff1a]?(?=\s?[(\uff08]?[A-H](?![A-Za-z]))"
"""An announcement of the letter of a choice by its verb, in Chinese."""

ANSWERED: Final = (
    rf"(?:{_BEFORE}){{0,4}}answer to (?:the|this|your) question"
    r"(?:,? [\"\u201c*_]{1,3}[^\n\"\u201d]{0,300}[\"\u201d*_]{1,3},?)? is\b:?"
)
"""An announcement that names the question, as it was asked or not."""

REFERENCES: Final = ("this ", "that ", "diese ", "dieses ", "cette ", "esta ", "questa ", "deze ", "dit ")
"""What stands before an announcement that speaks of an answer given before: "This answer is exact"."""

STEPS: Final = (
    "to|of|from|by|with|into|on|in|than|using|check|verify|confirm|simplify|round|convert|interpret|multiply|divide|"
    "add|subtract|combine|compare|insert|zum|vom|beim|mit dem|prüfe|überprüfe|runde|au|du|vérifions|vérifier|arrondir|"
    "al|del|verifica|verificar|comprobar"
)
"""What stands before an announcement that is a step with a result: "Add 6 to the result:"."""

SOURCES: Final = (
    r"(?:(?:indeed|clearly|exactly|also) )?(?:directly (?:stated|given|taken|found)|"
    r"(?:stated|given|found|told) (?:in|by)|(?:taken|derived) from|based on|consistent with|what the question)\b"
)
"""What stands behind an announcement that tells of the answer where it is from; one that gives it has precedence.

"Correct" is none: it is the answer where somebody asks whether a thing is correct.
"""

FORMS: Final = (
    r"(?:(?:given|written|expressed) )?(?:in (?:the|this|an?) [a-z ]{0,20}form(?:at)?|of the form|"
    r"in der form|sous la forme|en el formato|en forma)\b"
)
"""What stands behind an announcement that says how the answer looks, and not what it is."""

REMARKS: Final = (
    r"\s?\((?:see|from|by|using|as|because|since|step|cf\.|per|voir|siehe|ver)\b[^()]{0,80}\)$"
    r"|,\s(?:and )?not\s.{1,60}$"
)
"""What stands behind a value in its sentence and is no part of it."""

EXPLANATIONS: Final = (
    "explanation|reason|reasoning|because|note|justification|this is because|since|here is why|why|confidence|source|"
    "sources|erklärung|begründung|hinweis|weil|explication|remarque|parce que|explicación|nota|porque|explicação|"
    "spiegazione|объяснение|пояснение|потому что|解释|解析|说明|因为|理由|説明|なぜなら|설명|이유"
)
"""Words that begin what is written behind an answer and is no part of it."""

CHOICE_WORDS: Final = (
    "option|choice|answer choice|answer option|letter|alternative|variante|opción|opção|opzione|вариант|选项|選項|"
    "選択肢|보기|antwort|réponse|respuesta|risposta|resposta|ответ|答案"
)
"""Words before the letter of a choice."""

NEGATIONS: Final = "not|isn't|nicht|keine|pas|no|não|non|не|不|ではない"
"""What stands behind an announcement that says what the answer is not."""

EXAMPLE_ANSWER: Final = "739164"
"""Stands between the answer tags of prompts as an example: weak models copy it, and hardly any answer has it."""

EXAMPLE_FUNCTION: Final = "count_herons"
"""The function of the program that stands there where a program is asked for."""

_PLACEHOLDERS: Final = (
    "the final answer|final answer|your final answer|your answer|your answer here|the answer|answer|answer here|"
    "insert answer here|insert your answer here|the final answer alone|the final answer to the question|"
    "the final answer here|final answer here|the json value|json value|the complete answer|the answer here|…"
)
PLACEHOLDERS: Final = frozenset(_PLACEHOLDERS.split("|"))
"""What stands between the answer tags of prompts, in small letters: copied, it answers nothing."""

FRAMES: Final = (
    "instructions?|system|user|assistant|human|response|reply|prompt|context|sources?|task|input|output|example|"
    "final_answer|result|end|text"
)
"""Tags that weak models take for the frame of a text and close without having opened them (SmolLM2-135M-Instruct)."""

_ABBREVIATIONS: Final = (
    "dr mr mrs ms st prof vs etc jr sr inc ltd co corp approx ca fig no vol e.g i.e u.s u.k u.n a.m p.m d.c mt ft"
)
ABBREVIATIONS: Final = frozenset(_ABBREVIATIONS.split())
"""Words whose full stop does not end a sentence, in small letters and without the last full stop."""


LABELS: Final = (
    "score|rating|grade|mark|points|punktzahl|punkte|bewertung|wertung|puntuación|calificación|puntaje|nota|pontuação|"
    "punteggio|voto|оценка|балл|ocena|puan|điểm|poäng|betyg|cijfer|karakter|arvosana|hodnocení|βαθμός|الدرجة|ציון|स्कोर|"
    "得分|评分|評分|分数|スコア|評価|点数|점수|평점"
)
"""Words before a score."""

POINTS: Final = "分|点(?:です|でした)?|점(?:입니다)?|балл|балла|баллов"
"""Words behind a score that only say that it is one, and that no blank need part from it."""

WHOLE: Final = "final|overall|total|gesamt|global|finale|totale|итоговая|общая|总|最终|総合|최종"
"""Words that mark one of several scores as that of the whole."""

BOUNDS: Final = "max|max\\.|maximum|min|min\\.|minimum|possible|highest|lowest|best|maximale|máxima|最高|満点"
"""Words before a label that make its number no score but a limit of the scale."""

VERDICTS: Final = "verdict|judgement|judgment|assessment|evaluation|likelihood|urteil|вердикт|结论"
"""Words before a judgement in words."""

NOT_SCORES: Final = "confidence|certainty|konfidenz|confianza|confiance|уверенность|置信度|step|line|page|error"
"""Words that make a number in a line no score."""

OUT_OF: Final = "/|out of|of|von|sur|de|di|su|из|中"
"""What stands between a score and the most that it can be."""

RATED: Final = "rate|rated|give|gave|assign|award|score of|score is|rating of|rating is|scores?"
"""Verbs before a score in a sentence."""

WORD_SCORES: Final = {
    "sure": 1.0,
    "certain": 1.0,
    "correct": 1.0,
    "right": 1.0,
    "yes": 1.0,
    "likely": 0.7,
    "plausible": 0.7,
    "possible": 0.5,
    "maybe": 0.5,
    "unsure": 0.5,
    "unlikely": 0.2,
    "doubtful": 0.2,
    "impossible": 0.0,
    "incorrect": 0.0,
    "wrong": 0.0,
    "no": 0.0,
}
"""What a judgement in words comes to."""

WORD_NEGATIONS: Final = frozenset({"not", "isn't", "never", "cannot", "can't", "hardly"})
"""Words beside which a judgement in words says something else."""

STARS: Final = "★☆⭐"
"""The full, the empty and the drawn star; a judgement has five unless the empty ones are shown."""
