"""Texts of many kinds: some are prose, and most are something that no longer works once a part of it is missing."""

# ruff: noqa: RUF001

from __future__ import annotations

LENGTH = 20_000


def long(text: str) -> str:
    """The same again and again."""
    return (text * (LENGTH // len(text) + 1))[:LENGTH].strip()


def spaced(text: str) -> str:
    """With blanks at the ends of lines, and more empty lines than prose needs."""
    return long(text).replace("\n\n", "\n\n\n\n").replace("\n", "  \n")


OTHER = {
    "commands": "cd /srv/app\ngit pull\nmake build\n",
    "commands that read as words": "make the build\nrun every test\ndeploy to production\n",
    "assembler": "mov eax, ebx\nadd eax, 4\njmp start\nret\n",
    "assembler with comments": "MOV EAX, EBX ; We move it into the register.\nRET ; And this returns to the caller.\n",
    "csv": "Ann,34,Berlin\nBob,29,Paris\n",
    "csv with sentences": 'Ann,"She walks along the coast every day."\nBob,"He likes to cook for many people."\n',
    "csv with semicolons": "Ann;34;She walks along the coast every day.\nBob;29;He likes to cook for many people.\n",
    "tsv": "Ann\t34\tShe walks along the coast every day.\n",
    "shell exports": "export PATH\nexport LANG\nexport HOME\n",
    "shell exports with values": "export PATH=/usr/bin\nexport LANG=C\n",
    "dockerfile": "FROM python\nWORKDIR /app\nCOPY . .\nRUN make install\nCMD serve\n",
    "dockerfile, lower case": "from python\nworkdir /app\ncopy . .\nrun make install\n",
    "haskell": "fact n\n  | n < 2 = 1\n  | otherwise = n * fact (n - 1)\n",
    "haskell without indents": "main = interact id\nsquare x = x * x\ntype Name = String\n",
    "ruby": "class User\nattr_reader :name\ndef greet\nputs name\nend\nend\n",
    "ruby with texts": 'puts "The build has been finished without errors."\n',
    "sql in one line": "select id, name from users where age > 30 order by name limit 10; ",
    "sql, lower case": "select id, name\nfrom users\nwhere age > 30\n",
    "sql with texts": "Select id from users where note like 'It is good. It is very good indeed.' ",
    "nginx": "server {\nlisten 80;\nroot /srv/www;\n}\n",
    "visual basic": 'Dim Total As Integer\nIf Total > 3 Then\nMsgBox "The total is larger than three."\nEnd If\n',
    "message boxes": 'MsgBox "The total of this month is larger than three."\n',
    "powershell": 'Write-Host "The server has been started successfully."\nGet-Process | Stop-Process\n',
    "batch": "ECHO The build has been finished without errors.\nREM This is the end of it all.\n",
    "cobol": "MOVE TAX TO TOTAL OF THE RECORD.\nADD ONE TO COUNTER GIVING NEW-COUNTER.\n",
    "log": "2024-05-01 12:00:00 INFO The service has been started and is ready.\n",
    "syslog": "May  1 12:00:00 host app: The service has been started and is ready.\n",
    "log without times": "INFO The service has been started and is ready.\nWARN It took longer than usual to do so.\n",
    "log of keys": 'level=info msg="The service has been started." took=12ms\n',
    "access log": '127.0.0.1 - - [01/May/2024:12:00:00 +0000] "GET / HTTP/1.1" 200 512\n',
    "test output": "test_one PASSED\ntest_two PASSED\ntest_three FAILED\n",
    "json lines": '{"name": "Ann", "note": "She walks along the coast every day."}\n',
    "json in one line": '[1, 2, {"note": "She walks. He cooks. They dance."}], ',
    "json strings": '"She walks along the coast every day.",\n"He likes to cook for many people.",\n',
    "yaml": "- name: build\n  run: make build\n- name: test\n  run: make test\n",
    "flat yaml": "name: build\non: push\nrun: make build\n",
    "toml": 'title = "She walks along the coast every day."\n',
    "xml": "<note>She walks along the coast every day.</note>\n",
    "diff": "-She walks along the coast every day.\n+She walks along the coast every night.\n",
    "python": "def f(x):\n    return x\n",
    "python without indents": "import os\nx = os.getcwd()\nprint(x)\n",
    "docstrings": '"""She walks along the coast every day."""\n',
    "comments": "# She walks along the coast every day.\nx = 1\n",
    "javascript": "const a = () => b;\nawait a();\n",
    "go": "func main() {\nfmt.Println(1)\n}\n",
    "rust": "let x = vec![1];\nprintln!(x);\n",
    "lisp": "(define (square x) (* x x))\n",
    "prolog": "parent(tom, bob).\nparent(bob, ann).\n",
    "erlang": "area(X) -> X * X.\n",
    "fortran": "PROGRAM MAIN\nPRINT *, X\nEND PROGRAM MAIN\n",
    "gherkin": "Given the user is on the page of the shop\nWhen they press the button to pay for it\n",
    "applescript": "tell application Finder to open the folder of the user\n",
    "makefile": "all: build test\nbuild:\n\tmake -C src\n",
    "markdown": "## Title\n- She walks along the coast every day.\n",
    "a table": "| Ann | She walks along the coast every day. |\n",
    "columns": "Ann    34   Berlin\nBob    29   Paris\n",
    "numbers": "12 34 56 78 90 11\n",
    "base64": "TWFuIGlzIGRpc3Rpbmd1aXNoZWQ=\n",
    "paths": "/srv/app/main.py\n/srv/app/other.py\n",
    "traceback": 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: no\n',
    "latex": "\\section{One} She walks along the coast every day.\n",
    "regexes": "^[a-z]+$\n\\d{3}\n",
    "names": "Ann Smith\nBob Jones\n",
    "chinese keys": "名称：一\n年龄：三十\n",
    "chinese log": "2024-05-01 12:00 服务已启动。\n",
    "thai": "เราคุยกันเรื่องเดิมๆระหว่างอาหารกลางวัน ",
    "prose around code": "She walks along the coast every day.\ngit pull\nmake build\n",
}
PROSE = {
    "a paragraph": "We talked about the usual things over lunch. ",
    "lines": "We talked about the usual things over lunch.\nThen we went home, and nobody said a word!\n\n",
    "a letter": (
        "Dear Ann, I hope that this letter finds you well. The weather here is as it always is in May: it rains\n"
        "in the morning, and in the afternoon the sun comes out. We paid 312 dollars for the flight, which is more\n"
        "than last year (about 10% more), but it can't be helped.\n\n"
        "Your brother asked me yesterday whether you would come to the wedding on 12 June. Will you?\n\n"
    ),
    "a story": (
        "“I have never seen such a storm in all my life,” said the captain, who had seen many. "
        "His mate, a quiet man from Brest, nodded and went below to look after the cargo—as he did every evening.\n\n"
    ),
    "german": "Wir haben beim Mittagessen über die üblichen Dinge gesprochen. Danach gingen wir nach Hause.\n",
    "french": "Nous avons parlé de choses et d’autres pendant le déjeuner. Êtes-vous déjà allé là-bas ?\n",
    "russian": "Мы говорили за обедом о самых обычных вещах. Потом все пошли домой.\n",
    "arabic": "تحدثنا عن الأشياء المعتادة أثناء تناول الغداء في المدينة. ",
    "hindi": "हमने दोपहर के भोजन पर सामान्य बातों के बारे में बात की। ",
    "korean": "우리는 점심을 먹으면서 늘 하던 이야기를 오래 나누었다. ",
    "chinese": "我们吃午饭的时候聊了一些平常的事情。后来大家都回家了，谁也没有说话！",
    "japanese": "昼食をとりながら、いつものことについて話しました。そのあと、みんな家に帰りました。\n",
}
