"""Words that say what kind of sentence this is, in a few languages.

Short on purpose: forms (numbers, names, identifiers) carry most of what must be kept, and a
language that is missing here loses only a bonus.
"""

from __future__ import annotations


def listed(text: str) -> frozenset[str]:
    """The words of a list."""
    return frozenset(text.split())


def _table(**lists: str) -> dict[str, float]:
    weights = {"strong": 1.5, "plain": 0.8}
    return {word: weights[name] for name, text in lists.items() for word in text.split()}


SIGNALS = _table(
    strong="""
    decided decide decision agreed agree confirmed cancelled canceled approved rejected
    booked refunded denied chose chosen settled postponed rescheduled promised deadline due
    must never always cannot can't allergic allergy prefer prefers preferred preference require requires required
    forbidden mandatory only except unless important remember instead budget limit maximum minimum
    entschieden beschlossen vereinbart bestätigt storniert abgesagt genehmigt abgelehnt gebucht muss müssen darf
    niemals nie immer allergisch allergie bevorzuge lieber wichtig frist nur
    décidé confirmé annulé convenu refusé approuvé doit jamais toujours allergique préfère préférence important
    decidido decidimos confirmado cancelado acordado rechazado aprobado debe nunca siempre alérgico alérgica prefiero
    deciso confermato annullato deve mai sempre allergico preferisco
    决定 确认 取消 同意 批准 拒绝 必须 不能 不要 过敏 喜欢 偏好 禁止 截止
    決定 確認 承認 必ず 必須 決め 好き 嫌い 期限 アレ
    결정 확인 취소 반드 절대 선호
    """,
    plain="""
    confirm confirmation cancel
    i'll we'll will won't shall going need needs want wants would wouldn't like don't doesn't didn't isn't
    not no without failed failure error blocked missing wrong changed moved switched updated deleted created sent paid
    my name called email phone address
    nicht kein keine brauche möchte werde ne pas besoin voudrais non necesito quiero voy
    """,
)
COURTESY = _table(
    strong="""
    thanks thank hello hi hey welcome glad pleasure sorry apologies sure certainly great danke hallo bitte merci bonjour
    gracias hola grazie ciao 谢谢 你好 がと こん 감사
    """,
    plain="feel free assist assistance further happy help anything else",
)
STOP_WORDS = listed(
    """
    a an the and or but if of to in on at by for from with as is are was were be been being am it its it's this that
    these those there here he she they them his her their we us our you your yours i me my mine do does did done have
    has had having can could may might will would shall should so than then too very just also about into over out up
    down what which who whom whose when where why how all any each some such no not only own same more most other
    please okay ok yes i'm i'll i've i'd you're we're that's let's let
    der die das den dem des ein eine einen einem einer und oder aber wenn von zu im in an auf bei mit für aus ist sind
    war wird ich du er sie es wir ihr mein dein sein nicht auch als wie so noch nur
    le la les un une des et ou mais si de du au aux en dans sur par pour avec est sont je tu il elle nous vous ils ce
    cette ces que qui ne pas plus
    el los las una unos unas y o pero con por para es son yo ella nosotros que se su sus al lo como más
    """
)
