"""How judges announce a score and its scale, in many languages, and the words that they use for one.

Sources: truera/trulens#862, OpenAgentHQ/openagent-eval#74, modelscope/evalscope#1575; MT-Bench's `[[7]]`.
"""

from __future__ import annotations

from typing import Final

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
